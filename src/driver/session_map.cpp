#include "driver/session_map.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tonnage::driver {

abi::Session* map_session(const char* path) {
  if (!path || !*path) return nullptr;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat info {};
  void* memory = MAP_FAILED;
  if (fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) >= sizeof(abi::Session))
    memory = mmap(nullptr, sizeof(abi::Session), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  auto* session = static_cast<abi::Session*>(memory);
  const bool usable = session->magic == abi::kSessionMagic &&
                      session->version == abi::kSessionVersion &&
                      session->struct_bytes == sizeof(abi::Session) && session->device_count >= 0 &&
                      session->device_count <= abi::kMaxDevices;
  if (usable) return session;
  munmap(memory, sizeof(abi::Session));
  return nullptr;
}

}  // namespace tonnage::driver
