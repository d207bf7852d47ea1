#include "driver/recording.h"

#include <string.h>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "driver/state.h"
#include "record/writer.h"

namespace tonnage::driver {

using Fact = abi::MemoryEvent;  // Event alone is a CUDA event here

namespace {

using abi::EventKind;

std::atomic<void (*)(Fact*)> g_context_provider{nullptr};
std::atomic<const char*> g_accounted_kernels{nullptr};
thread_local int t_operator_depth = 0;
thread_local bool t_has_posted_read = false;
thread_local int64_t t_posted_read = 0;
thread_local int t_upload_policy = 0;

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

// --- The bridge's functions ---

int bridge_get(uint64_t address, void* out, size_t n) {
  Driver* state = driver();
  return state && state->content.get(address, out, n) ? 1 : 0;
}
void bridge_set(uint64_t address, const void* bytes, size_t n) {
  if (Driver* state = driver()) state->content.set(address, bytes, n);
}
void bridge_forget(uint64_t address, size_t n) {
  if (Driver* state = driver()) state->content.forget(address, n);
}
int bridge_any(uint64_t address, size_t n) {
  Driver* state = driver();
  return state && state->content.any(address, n) ? 1 : 0;
}
void bridge_fill(uint64_t address, uint32_t pattern, unsigned width, size_t n) {
  if (Driver* state = driver()) state->content.fill(address, pattern, width, n);
}
class ForeignPromise : public gpu::Promise {
 public:
  ForeignPromise(void* owner, int (*fetch)(void*, void*, size_t), void (*release)(void*))
      : owner_(owner), fetch_(fetch), release_(release) {}
  ~ForeignPromise() override { release_(owner_); }
  bool fetch(void* out, size_t n) override { return fetch_(owner_, out, n) != 0; }

 private:
  void* owner_;
  int (*fetch_)(void*, void*, size_t);
  void (*release_)(void*);
};
void bridge_promise(uint64_t address, size_t n, void* owner, int (*fetch)(void*, void*, size_t),
                    void (*release)(void*)) {
  auto promise = std::make_unique<ForeignPromise>(owner, fetch, release);
  if (Driver* state = driver()) state->content.promise(address, n, std::move(promise));
}
size_t bridge_read(uint64_t address, void* out, size_t n) {
  Driver* state = driver();
  return state ? state->content.read(address, out, n) : n;
}
void bridge_account_for_kernels(const char* part_of_name) {
  g_accounted_kernels.store(part_of_name, std::memory_order_release);
}
void bridge_operator_depth(int delta) { t_operator_depth += delta; }
void bridge_post_read(int64_t value) {
  t_posted_read = value;
  t_has_posted_read = true;
}
void bridge_clear_posted_read() { t_has_posted_read = false; }
uint32_t bridge_intern_string(const char* text, size_t n) {
  return writer().intern_string(text, n);
}
uint32_t bridge_intern_stack(const abi::Frame* frames, size_t n) {
  return writer().intern_stack(frames, n);
}
void bridge_emit(const Fact* event) {
  // Memory that PyTorch hands out anew has no known content.
  if (event->kind == EventKind::kAlloc) {
    if (Driver* state = driver()) state->content.forget(event->address, event->size_bytes);
    torch_blocks().add(event->address, event->size_bytes);
  }
  if (event->kind == EventKind::kFreeRequested) torch_blocks().remove(event->address);
  if (event->kind == EventKind::kStep)
    if (Driver* state = driver()) record_kernel_counts(state);
  writer().emit(*event);
  // PyTorch has taken more of the card: that is in the file at once, whatever ends the process next
  // (it is rare).
  thread_local bool grew = false;
  if (event->kind == EventKind::kSegmentAlloc || event->kind == EventKind::kSegmentMap) grew = true;
  if (event->kind == EventKind::kAlloc && grew) {
    grew = false;
    writer().flush();
  }
}
void bridge_flush() { writer().flush(); }
void bridge_set_context_provider(void (*fill)(Fact*)) {
  g_context_provider.store(fill, std::memory_order_release);
}
void bridge_set_upload_policy(int policy) { t_upload_policy = policy; }

abi::Bridge g_bridge = {sizeof(abi::Bridge),
                        abi::kBridgeVersion,
                        nullptr,
                        bridge_get,
                        bridge_set,
                        bridge_forget,
                        bridge_any,
                        bridge_operator_depth,
                        bridge_post_read,
                        bridge_clear_posted_read,
                        bridge_intern_string,
                        bridge_intern_stack,
                        bridge_emit,
                        bridge_flush,
                        bridge_set_context_provider,
                        bridge_set_upload_policy,
                        bridge_fill,
                        bridge_promise,
                        bridge_read,
                        bridge_account_for_kernels};

}  // namespace

const abi::Bridge* bridge() { return &g_bridge; }

gpu::BlockTable& torch_blocks() {
  static gpu::BlockTable& table = *new gpu::BlockTable;
  return table;
}

void start_recording(Driver* state) {
  g_bridge.session = state->session;
  if (state->session->record_path[0] == 0) return;
  if (!writer().open(state->session->record_path, state->session->start_ns)) return;
  Fact event = make_event(EventKind::kProcessStart, 0);
  event.value = static_cast<uint64_t>(state->pid);
  char command[512] = {};
  if (FILE* file = fopen("/proc/self/cmdline", "re")) {
    const size_t n = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    for (size_t i = 0; i + 1 < n; i++)
      if (command[i] == 0) command[i] = ' ';
  }
  event.name = writer().intern_string(command);
  writer().emit(event);
  atexit([] {
    if (Driver* at_end = driver()) record_kernel_counts(at_end);
  });
}

void stop_recording_in_child() { g_context_provider.store(nullptr); }

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
void record_kernel_counts(Driver* state) {
  for (auto& device : state->devices) {
    Fact event = make_event(EventKind::kKernelCount, device->index);
    event.value = device->launches.load();
    if (event.value > 0) writer().emit(event);
  }
}

bool take_posted_read(int64_t* value) {
  if (!t_has_posted_read) return false;
  t_has_posted_read = false;
  *value = t_posted_read;
  return true;
}

bool accounted_for(std::string_view kernel) {
  if (t_operator_depth > 0) return true;
  const char* part = g_accounted_kernels.load(std::memory_order_acquire);
  return part && kernel.find(part) != std::string_view::npos;
}
int upload_policy() { return t_upload_policy; }

}  // namespace tonnage::driver
