#include "driver/shared_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>

namespace tonnage::driver {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

SharedBlock* map_block(int fd) {
  void* memory = mmap(nullptr, sizeof(SharedBlock), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<SharedBlock*>(memory);
}

}  // namespace

SharedBlock* make_shared_block(SharedBlock::Kind kind, int* fd) {
  *fd = memfd_create("tonnage-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return nullptr;
  SharedBlock* block = nullptr;
  if (ftruncate(*fd, sizeof(SharedBlock)) == 0 && fcntl(*fd, F_ADD_SEALS, kSeals) == 0)
    block = map_block(*fd);
  if (!block) {
    close(*fd);
    *fd = -1;
    return nullptr;
  }
  new (block) SharedBlock{};
  block->struct_bytes = sizeof(SharedBlock);
  block->kind = kind;
  block->owner_pid = getpid();
  block->session_start_ns = driver()->session->start_ns;
  driver()->ledger.share(block->charge);
  block->magic = SharedBlock::kMagic;
  return block;
}

SharedBlock* open_shared_block(SharedBlock::Kind kind, int fd) {
  // Sealed to its size, so that reading the mapping cannot fault.
  struct stat info {};
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(sizeof(SharedBlock)))
    return nullptr;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return nullptr;
  SharedBlock* block = map_block(fd);
  if (!block) return nullptr;
  const bool usable = block->magic == SharedBlock::kMagic &&
                      block->struct_bytes == sizeof(SharedBlock) && block->kind == kind &&
                      block->session_start_ns == driver()->session->start_ns;
  if (usable && driver()->ledger.join(block->charge)) return block;
  munmap(block, sizeof(SharedBlock));
  return nullptr;
}

void drop_shared_block(SharedBlock* block) {
  driver()->ledger.leave(block->charge, block->physical, block->size_bytes);
  munmap(block, sizeof(SharedBlock));
}

Device* device_at(int physical) {
  for (const auto& device : driver()->devices)
    if (device->physical == physical) return device.get();
  return nullptr;
}

}  // namespace tonnage::driver
