#include "passthrough/nvml_memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>

namespace tonnage::passthrough {
namespace {

// The few types and functions of nvml.h that are used; all return 0 for success.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Nvml {
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  bool usable = false;
};

// The library beside the real driver that was named, or the system's.
void* open_library() {
  if (const char* driver = getenv("TONNAGE_REAL_CUDA"); driver && strrchr(driver, '/')) {
    char path[4096];
    const auto folder = static_cast<int>(strrchr(driver, '/') - driver);
    snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", folder, driver);
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
}

const Nvml& nvml() {
  static Nvml& instance = *new Nvml;
  static std::once_flag once;
  std::call_once(once, [] {
    void* library = open_library();
    if (!library) return;
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    instance.by_uuid =
        reinterpret_cast<decltype(instance.by_uuid)>(dlsym(library, "nvmlDeviceGetHandleByUUID"));
    instance.memory =
        reinterpret_cast<decltype(instance.memory)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
    instance.usable = start && instance.by_uuid && instance.memory && start() == 0;
  });
  return instance;
}

void write_uuid(const char* prefix, const char* uuid, char* out, size_t n) {
  int at = snprintf(out, n, "%s", prefix);
  for (int i = 0; i < 16; i++)
    at += snprintf(out + at, n - static_cast<size_t>(at), "%s%02x",
                   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                   static_cast<unsigned char>(uuid[i]));
}

}  // namespace

std::optional<uint64_t> nvml_used_bytes(const char* uuid) {
  if (!nvml().usable) return std::nullopt;
  for (const char* prefix : {"GPU-", "MIG-"}) {
    char text[64];
    write_uuid(prefix, uuid, text, sizeof text);
    Device device = nullptr;
    Memory memory{};
    if (nvml().by_uuid(text, &device) == 0 && nvml().memory(device, &memory) == 0)
      return memory.used;
  }
  return std::nullopt;
}

}  // namespace tonnage::passthrough
