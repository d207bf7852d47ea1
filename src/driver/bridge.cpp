#include "driver/bridge.h"

#include <atomic>
#include <memory>
#include <utility>

#include "driver/recording.h"
#include "record/writer.h"

namespace tonnage::driver {

using Fact = abi::MemoryEvent;

namespace {

using abi::EventKind;

std::atomic<gpu::ShadowMemory*> g_content{nullptr};
std::atomic<void (*)()> g_at_step{nullptr};
std::atomic<const char*> g_accounted_kernels{nullptr};
thread_local int t_operator_depth = 0;
thread_local bool t_has_posted_read = false;
thread_local int64_t t_posted_read = 0;
thread_local int t_upload_policy = 0;
thread_local bool t_grew = false;  // a segment was added since the last block

record::Writer& writer() { return record::process_writer(); }

// --- Known content of device memory ---

int bridge_get(uint64_t address, void* out, size_t n) {
  gpu::ShadowMemory* content = g_content.load(std::memory_order_acquire);
  return content && content->get(address, out, n) ? 1 : 0;
}
void bridge_set(uint64_t address, const void* bytes, size_t n) {
  if (auto* content = g_content.load(std::memory_order_acquire)) content->set(address, bytes, n);
}
void bridge_forget(uint64_t address, size_t n) {
  if (auto* content = g_content.load(std::memory_order_acquire)) content->forget(address, n);
}
int bridge_any(uint64_t address, size_t n) {
  gpu::ShadowMemory* content = g_content.load(std::memory_order_acquire);
  return content && content->any(address, n) ? 1 : 0;
}
void bridge_fill(uint64_t address, uint32_t pattern, unsigned width, size_t n) {
  if (auto* content = g_content.load(std::memory_order_acquire))
    content->fill(address, pattern, width, n);
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
  if (auto* content = g_content.load(std::memory_order_acquire))
    content->promise(address, n, std::move(promise));
}
size_t bridge_read(uint64_t address, void* out, size_t n) {
  gpu::ShadowMemory* content = g_content.load(std::memory_order_acquire);
  return content ? content->read(address, out, n) : n;
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

// --- Events of the recorder ---

// Memory that PyTorch hands out anew has no known content.
void forget_content_of(const Fact& event) {
  if (event.kind == EventKind::kAlloc) bridge_forget(event.address, event.size_bytes);
}
void follow_blocks(const Fact& event) {
  if (event.kind == EventKind::kAlloc) torch_blocks().add(event.address, event.size_bytes);
  if (event.kind == EventKind::kFreeRequested) torch_blocks().remove(event.address);
}
void tell_of_step(const Fact& event) {
  if (event.kind != EventKind::kStep) return;
  if (auto at_step = g_at_step.load(std::memory_order_acquire)) at_step();
}
// PyTorch has reserved more memory. This is written to the file at once, so that it is there
// however the process ends (it happens rarely). The segment's first block belongs to it.
void flush_growth(const Fact& event) {
  if (event.kind == EventKind::kSegmentAlloc || event.kind == EventKind::kSegmentMap) t_grew = true;
  if (event.kind != EventKind::kAlloc || !t_grew) return;
  t_grew = false;
  writer().flush();
}
void bridge_emit(const Fact* event) {
  forget_content_of(*event);
  follow_blocks(*event);
  tell_of_step(*event);
  Fact placed = *event;
  placed.device = static_cast<uint8_t>(place_in_session(event->device));
  writer().emit(placed);
  flush_growth(*event);
}
void bridge_flush() { writer().flush(); }
void bridge_set_context_provider(void (*fill)(Fact*)) { set_context_provider(fill); }
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

void start_bridge(abi::Session* session, gpu::ShadowMemory* content, void (*at_step)()) {
  g_bridge.session = session;
  g_content.store(content, std::memory_order_release);
  g_at_step.store(at_step, std::memory_order_release);
}

const abi::Bridge* bridge() { return &g_bridge; }

gpu::BlockTable& torch_blocks() {
  static gpu::BlockTable& table = *new gpu::BlockTable;
  return table;
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
