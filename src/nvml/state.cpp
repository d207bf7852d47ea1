#include "nvml/state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/session_locks.h"

// The table of the exported functions and their names, made by tools/gen_nvml_stubs.py.
extern "C" {
extern __attribute__((visibility("hidden"))) void* tonnage_nvml_table[];
extern __attribute__((visibility("hidden"))) const char* const tonnage_nvml_names[];
extern __attribute__((visibility("hidden"))) const unsigned int tonnage_nvml_count;
__attribute__((visibility("hidden"))) nvmlReturn_t tonnage_nvml_not_supported() {
  return NVML_ERROR_NOT_SUPPORTED;
}
__attribute__((visibility("hidden"))) nvmlReturn_t tonnage_nvml_not_found() {
  return NVML_ERROR_FUNCTION_NOT_FOUND;
}
}

namespace tonnage::nvml {
namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<abi::Session*> g_mapped{nullptr};  // kept once mapped: other threads may be reading it
std::atomic<int> g_users{0};

// The session's locks say which processes live.
pthread_mutex_t g_locks_mutex = PTHREAD_MUTEX_INITIALIZER;
abi::SessionLocks& locks() {
  static abi::SessionLocks& all = *new abi::SessionLocks;
  return all;
}

Handle g_devices[abi::kMaxDevices];
Handle g_slices[abi::kMaxDevices];

abi::Session* map_session() {
  const char* path = getenv("TONNAGE_SESSION");
  if (!path || !*path) return nullptr;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat info {};
  void* memory = MAP_FAILED;
  if (fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) >= sizeof(abi::Session)) {
    memory = mmap(nullptr, sizeof(abi::Session), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
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

void* open_real_library() {
  static constexpr char kName[] = "libnvidia-ml.so.1";
  char path[4096];
  if (const char* cuda = getenv("TONNAGE_REAL_CUDA"); cuda && strrchr(cuda, '/')) {
    const auto folder = static_cast<int>(strrchr(cuda, '/') - cuda);
    if (snprintf(path, sizeof path, "%.*s/%s", folder, cuda, kName) <
        static_cast<int>(sizeof path)) {
      if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
    }
  }
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"}) {
    snprintf(path, sizeof path, "%s/%s", folder, kName);
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

// From here on every exported function is the real library's; functions that it lacks say so.
bool pass_through() {
  void* library = open_real_library();
  if (!library) return false;
  for (unsigned int i = 0; i < tonnage_nvml_count; ++i) {
    void* real = dlsym(library, tonnage_nvml_names[i]);
    if (!real) real = reinterpret_cast<void*>(&tonnage_nvml_not_found);
    __atomic_store_n(&tonnage_nvml_table[i], real, __ATOMIC_RELAXED);
  }
  return true;
}

void* table_entry(const char* name) {
  for (unsigned int i = 0; i < tonnage_nvml_count; ++i) {
    if (strcmp(tonnage_nvml_names[i], name) == 0)
      return __atomic_load_n(&tonnage_nvml_table[i], __ATOMIC_RELAXED);
  }
  return nullptr;
}

nvmlReturn_t initialise(unsigned int flags) {
  pthread_mutex_lock(&g_mutex);
  abi::Session* session = g_mapped.load();
  if (!session) {
    session = map_session();
    if (session && (session->flags & abi::kFlagPassThrough)) {
      const bool passes = pass_through();
      munmap(session, sizeof(abi::Session));
      pthread_mutex_unlock(&g_mutex);
      if (!passes) return NVML_ERROR_LIBRARY_NOT_FOUND;
      auto* real =
          reinterpret_cast<nvmlReturn_t (*)(unsigned int)>(table_entry("nvmlInitWithFlags"));
      return real(flags);
    }
    if (session) {
      locks().open(getenv("TONNAGE_SESSION"));
      for (int i = 0; i < abi::kMaxDevices; ++i) {
        g_devices[i] = {i, false};
        g_slices[i] = {i, true};
      }
      g_mapped.store(session);
    }
  }
  if (session) g_users.fetch_add(1);
  pthread_mutex_unlock(&g_mutex);
  return session ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

}  // namespace

abi::Session* session() { return g_users.load() > 0 ? g_mapped.load() : nullptr; }

const Handle* handle_of(nvmlDevice_t device) {
  const abi::Session* mapped = session();
  if (!mapped) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(device);
  for (Handle* handles : {g_devices, g_slices}) {
    const auto first = reinterpret_cast<uintptr_t>(handles);
    if (address < first || address >= first + sizeof g_devices ||
        (address - first) % sizeof(Handle) != 0)
      continue;
    const auto index = static_cast<int>((address - first) / sizeof(Handle));
    if (index >= mapped->device_count || (handles == g_slices && !mapped->devices[index].is_mig))
      return nullptr;
    return &handles[index];
  }
  return nullptr;
}

nvmlDevice_t device_handle(int index) { return reinterpret_cast<nvmlDevice_t>(&g_devices[index]); }
nvmlDevice_t slice_handle(int index) { return reinterpret_cast<nvmlDevice_t>(&g_slices[index]); }

nvmlReturn_t give_text(std::string_view text, char* out, unsigned int length) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (length < text.size() + 1) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text.data(), text.size());
  out[text.size()] = 0;
  return NVML_SUCCESS;
}

void uuid_text(const abi::CardDesc& card, bool slice, char out[48]) {
  static constexpr char kDigits[] = "0123456789abcdef";
  memcpy(out, slice ? "MIG-" : "GPU-", 4);
  char* at = out + 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    *at++ = kDigits[card.uuid[i] >> 4];
    *at++ = kDigits[card.uuid[i] & 15];
  }
  *at = 0;
}

void bus_text(const abi::CardDesc& card, bool legacy, char* out, size_t n) {
  snprintf(out, n, legacy ? "%04X:%02X:%02X.0" : "%08X:%02X:%02X.0",
           static_cast<unsigned>(card.pci_domain), static_cast<unsigned>(card.pci_bus),
           static_cast<unsigned>(card.pci_device));
}

uint64_t used_bytes(const abi::Session& session, int index) {
  uint64_t used = 0;
  each_process(
      session, index,
      [](void* sum, int32_t, uint64_t bytes) { *static_cast<uint64_t*>(sum) += bytes; }, &used);
  const uint64_t total = session.devices[index].total_bytes;
  return used < total ? used : total;
}

void each_process(const abi::Session& session, int index,
                  void (*visit)(void* argument, int32_t pid, uint64_t bytes), void* argument) {
  const int slots = std::clamp(session.slots_used.load(), 0, abi::kMaxProcesses);
  for (int i = 0; i < slots; ++i) {
    const abi::ProcessAccount& process = session.processes[i];
    const int32_t pid = process.pid.load(std::memory_order_relaxed);
    const uint64_t bytes = process.used_bytes[index].load(std::memory_order_relaxed);
    if (bytes == 0 || pid <= 0) continue;
    pthread_mutex_lock(&g_locks_mutex);
    const bool lives = locks().slot_lives(i, pid);
    pthread_mutex_unlock(&g_locks_mutex);
    if (lives) visit(argument, pid, bytes);
  }
}

int attribute(const abi::CardDesc& card, int number) {
  return number > 0 && number < abi::kAttributeCount ? card.attributes[number] : 0;
}

Family family_of(const abi::CardDesc& card) {
  const std::string_view name(card.name, strnlen(card.name, sizeof card.name));
  const auto has = [name](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (has("GeForce")) return Family::kGeforce;
  if (has("TITAN")) return Family::kTitan;
  if (has("RTX") || has("Quadro")) return Family::kWorkstation;
  return Family::kDataCentre;
}

}  // namespace tonnage::nvml

using namespace tonnage::nvml;

NVML_ENTRY(nvmlInit)() { return initialise(0); }
NVML_ENTRY(nvmlInit_v2)() { return initialise(0); }
NVML_ENTRY(nvmlInitWithFlags)(unsigned int flags) { return initialise(flags); }

NVML_ENTRY(nvmlShutdown)() {
  int users = g_users.load();
  while (users > 0) {
    if (g_users.compare_exchange_weak(users, users - 1)) return NVML_SUCCESS;
  }
  return NVML_ERROR_UNINITIALIZED;
}
