#include "driver/recording.h"

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>

#include "record/writer.h"

namespace tonnage::driver {

using Fact = abi::MemoryEvent;  // Event alone is a CUDA event here

namespace {

using abi::EventKind;

std::atomic<void (*)(Fact*)> g_context_provider{nullptr};

record::Writer& writer() { return record::process_writer(); }

Fact make_event(EventKind kind, int device) {
  Fact event;
  event.kind = kind;
  event.device = static_cast<uint8_t>(device);
  return event;
}

void emit_with_context(Fact& event) {
  if (!writer().recording()) return;
  if (auto fill = g_context_provider.load(std::memory_order_acquire)) fill(&event);
  writer().emit(event);
}

}  // namespace

void set_context_provider(void (*fill)(abi::MemoryEvent*)) {
  g_context_provider.store(fill, std::memory_order_release);
}

void start_recording(const abi::Session& session, int pid) {
  if (session.record_path[0] == 0) return;
  if (!writer().open(session.record_path, session.start_ns)) return;
  Fact event = make_event(EventKind::kProcessStart, 0);
  event.value = static_cast<uint64_t>(pid);
  char command[512] = {};
  if (FILE* file = fopen("/proc/self/cmdline", "re")) {
    const size_t n = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    for (size_t i = 0; i + 1 < n; i++)
      if (command[i] == 0) command[i] = ' ';
  }
  event.name = writer().intern_string(command);
  writer().emit(event);
}

void stop_recording_in_child() { set_context_provider(nullptr); }

void record_device_alloc(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kDeviceAlloc, device);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
}
void record_device_free(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kDeviceFree, device);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
}
void record_host_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kHostAlloc, 0);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
}
void record_host_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kHostFree, 0);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
}
void record_device_oom(int device, uint64_t requested_bytes, uint64_t free_bytes) {
  Fact event = make_event(EventKind::kDeviceOom, device);
  event.size_bytes = requested_bytes;
  event.value = free_bytes;
  emit_with_context(event);
  writer().flush();
}
void record_context(int device, uint64_t modelled_bytes) {
  Fact event = make_event(EventKind::kContext, device);
  event.size_bytes = modelled_bytes;
  event.flags = abi::kEventModelled;
  emit_with_context(event);
}
void record_module_load(int device, uint64_t modelled_bytes, std::string_view name) {
  Fact event = make_event(EventKind::kModuleLoad, device);
  event.size_bytes = modelled_bytes;
  event.flags = abi::kEventModelled;
  event.name = writer().intern_string(name.data(), name.size());
  emit_with_context(event);
}
void record_unknown_read(int device, uint64_t address, uint64_t bytes) {
  Fact event = make_event(EventKind::kUnknownRead, device);
  event.address = address;
  event.size_bytes = bytes;
  emit_with_context(event);
}
void record_stub_call(const char* function) {
  if (!writer().recording()) return;
  static std::mutex& mutex = *new std::mutex;
  static auto& seen = *new std::unordered_set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!seen.insert(function).second) return;
  }
  Fact event = make_event(EventKind::kStubCall, 0);
  event.name = writer().intern_string(function);
  emit_with_context(event);
}
void record_fact(std::string_view key, std::string_view value) {
  Fact event = make_event(EventKind::kFact, 0);
  const std::string text = std::string(key) + "=" + std::string(value);
  event.name = writer().intern_string(text.data(), text.size());
  writer().emit(event);
}
void record_message(std::string_view text, bool warning) {
  Fact event = make_event(EventKind::kMessage, 0);
  event.name = writer().intern_string(text.data(), text.size());
  event.value = warning ? 1 : 0;
  emit_with_context(event);
}
void record_kernel_count(int device, uint64_t launches) {
  Fact event = make_event(EventKind::kKernelCount, device);
  event.value = launches;
  if (event.value > 0) writer().emit(event);
}

}  // namespace tonnage::driver
