#include "driver/recording.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>

#include "driver/asking_library.h"
#include "record/writer.h"

namespace tonnage::driver {

using Fact = abi::MemoryEvent;  // Event alone is a CUDA event here

namespace {

using abi::EventKind;

constexpr uint64_t kFlushedGrowth = 64ull << 20;  // or an eighth

std::atomic<void (*)(Fact*)> g_context_provider{nullptr};

record::Writer& writer() { return record::process_writer(); }

Fact make_event(EventKind kind, int device) {
  Fact event;
  event.kind = kind;
  event.device = static_cast<uint8_t>(place_in_session(device));
  return event;
}

// The peak must be in the file however the process ends. So it is written whenever the process
// holds much more of a card than ever before.
std::atomic<uint64_t> g_held[abi::kMaxDevices], g_most_written[abi::kMaxDevices],
    g_last_written[abi::kMaxDevices];
std::atomic<abi::Session*> g_session{nullptr};
int g_places[abi::kMaxDevices];  // by visible device; set once, before anything is recorded
std::atomic<int> g_place_count{0};

void flush_held(int device, uint64_t now) {
  g_last_written[device].store(now, std::memory_order_relaxed);
  writer().flush();
}

// Beside other processes the file follows what is given back too: a process that is killed must not
// seem to hold what another one already has.
void flush_when_others_share(int device, uint64_t now) {
  const abi::Session* session = g_session.load(std::memory_order_relaxed);
  if (!session || session->drivers_loaded.load(std::memory_order_relaxed) < 2) return;
  const uint64_t last = g_last_written[device].load(std::memory_order_relaxed);
  const uint64_t changed = now > last ? now - last : last - now;
  if (changed > std::min(last / 8, kFlushedGrowth)) flush_held(device, now);
}

void flush_when_grown(int device, uint64_t bytes) {
  if (device < 0 || device >= abi::kMaxDevices) return;
  const uint64_t now = g_held[device].fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const uint64_t before = g_most_written[device].load(std::memory_order_relaxed);
  if (now <= before + std::min(before / 8, kFlushedGrowth))
    return flush_when_others_share(device, now);
  g_most_written[device].store(now, std::memory_order_relaxed);
  flush_held(device, now);
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

int place_in_session(int device) {
  return device >= 0 && device < g_place_count.load(std::memory_order_acquire) ? g_places[device]
                                                                               : device;
}

void start_recording(abi::Session& session, const std::vector<int>& places) {
  if (session.record_path[0] == 0) return;
  const int count = std::min<int>(static_cast<int>(places.size()), abi::kMaxDevices);
  std::copy_n(places.begin(), count, g_places);
  g_place_count.store(count, std::memory_order_release);
  g_session.store(&session, std::memory_order_relaxed);
  writer().tell_failure(&session.record_failure);
  if (!writer().open(session.record_path, session.start_ns)) return;
  writer().begin();
}

void stop_recording_in_child() { set_context_provider(nullptr); }

void record_device_alloc(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kDeviceAlloc, device);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
  flush_when_grown(device, bytes);
}
void record_device_free(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  Fact event = make_event(EventKind::kDeviceFree, device);
  event.address = address;
  event.size_bytes = bytes;
  event.value = static_cast<uint64_t>(kind);
  emit_with_context(event);
  if (device < 0 || device >= abi::kMaxDevices) return;
  const uint64_t now = g_held[device].fetch_sub(bytes, std::memory_order_relaxed) - bytes;
  flush_when_others_share(device, now);
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
void record_device_oom(int device, uint64_t requested_bytes, uint64_t free_bytes,
                       const char* asker) {
  if (!writer().recording()) return;
  Fact event = make_event(EventKind::kDeviceOom, device);
  const std::string library = *asker ? asker : asking_library();
  event.name = writer().intern_string(library.data(), library.size());
  event.size_bytes = requested_bytes;
  event.value = free_bytes;
  emit_with_context(event);
  writer().flush();
}
void record_host_refusal(uint64_t bytes) {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  Fact event = make_event(EventKind::kHostRefusal, 0);
  event.size_bytes = bytes;
  event.value = limited ? limit.rlim_cur : 0;
  event.name = writer().intern_string("address_space");
  emit_with_context(event);
  record_message(limited ? "this machine, not the card, refused memory: the limit on address space "
                           "(ulimit -v) left no addresses for device memory; raise it"
                         : "this machine, not the card, refused memory: it has no address space "
                           "left for device memory",
                 true);
  writer().flush();
}
void record_pinned_refusal(uint64_t bytes, uint64_t limit) {
  Fact event = make_event(EventKind::kHostRefusal, 0);
  event.size_bytes = bytes;
  event.value = limit;
  event.name = writer().intern_string("pinned_memory");
  emit_with_context(event);
  writer().flush();
}
void record_context(int device, uint64_t bytes, bool modelled) {
  Fact event = make_event(EventKind::kContext, device);
  event.size_bytes = bytes;
  if (modelled) event.flags = abi::kEventModelled;
  emit_with_context(event);
  writer().flush();
}
void record_context_end(int device, uint64_t bytes) {
  Fact event = make_event(EventKind::kContextEnd, device);
  event.size_bytes = bytes;
  emit_with_context(event);
}
void record_driver_memory(int device, uint64_t bytes, abi::DriverMemory what, std::string_view name,
                          bool modelled) {
  Fact event = make_event(EventKind::kModuleLoad, device);
  event.size_bytes = bytes;
  if (modelled) event.flags = abi::kEventModelled;
  event.value = static_cast<uint64_t>(what);
  event.name = writer().intern_string(name.data(), name.size());
  emit_with_context(event);
}
void record_slot(uint64_t identity) {
  Fact event = make_event(EventKind::kSlot, 0);
  event.value = identity;
  writer().emit(event);
  writer().flush();
}
// Without asking the recorder: the account is locked.
void record_process_gone(uint64_t identity) {
  Fact event = make_event(EventKind::kSlotGone, 0);
  event.value = identity;
  writer().emit(event);
  writer().flush();
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
