#include "tonnage/torch/offload.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace tonnage {
namespace detail {

using ::torch::Tensor;

// All of a storage, as bytes.
static Tensor bytes_of(const Tensor& tensor) {
  auto options = ::torch::TensorOptions().dtype(::torch::kByte).device(tensor.device());
  Tensor out = ::torch::empty({0}, options);
  out.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
  return out;
}

static c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

static c10::Event record_event(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

// One storage that was moved. Guarded by the state's mutex.
struct Moved {
  Tensor host;    // bytes
  Tensor device;  // bytes: not empty while a copy is under way, and from a fetch until all views
                  // are made
  c10::Device home = c10::kCPU;
  std::optional<c10::Event> out_done;  // the copy to the host has ended
  std::optional<c10::Event> in_done;   // the copy back has ended
  int64_t bytes = 0;
  uint64_t order = 0;  // of the forward pass
  int64_t users = 0;   // packed tensors that are not unpacked yet, in this backward pass
  int64_t packed = 0;  // packed tensors that are alive
  const c10::StorageImpl* storage = nullptr;  // where it was, only to be compared
};

struct OffloadState {
  explicit OffloadState(const OffloadOptions& o) : options(o) {
    for (const Tensor& t : o.keep)
      if (t.defined() && t.has_storage()) kept.insert(t.storage().unsafeGetStorageImpl());
  }

  c10::Stream side_stream(c10::Device device) {
    auto found = streams.find(device.index());
    if (found == streams.end())
      found =
          streams
              .emplace(
                  device.index(),
                  c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false))
              .first;
    return found->second;
  }

  std::shared_ptr<Moved> move_out(const Tensor& tensor);
  void release_oldest();
  void fetch(Moved& moved);
  Tensor unpack(Moved& moved, const Tensor& like, int64_t offset, at::IntArrayRef sizes,
                at::IntArrayRef strides);
  void prefetch_before(uint64_t order);
  void forget(const std::shared_ptr<Moved>& moved);

  const OffloadOptions options;
  std::unordered_set<const c10::StorageImpl*> kept;
  mutable std::mutex mutex;
  std::map<c10::DeviceIndex, c10::Stream> streams;
  // Storages of the forward pass by address: entries hold the storage weakly, so an address that is
  // used again is seen.
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t version;
    std::weak_ptr<Moved> moved;
  };
  std::unordered_map<const c10::StorageImpl*, Known> known;
  std::deque<std::shared_ptr<Moved>> in_flight;
  int64_t in_flight_bytes = 0;
  std::map<uint64_t, std::weak_ptr<Moved>> by_order;
  uint64_t next_order = 0;
  OffloadFigures figures;
};

struct Offloaded : PackedTensor {
  Offloaded(std::shared_ptr<OffloadState> of, std::shared_ptr<Moved> what, const Tensor& tensor);
  ~Offloaded() override;
  Tensor unpack() override;

  std::shared_ptr<OffloadState> state;
  std::shared_ptr<Moved> moved;
  Tensor like;  // of no size: type and layout of what was packed
  int64_t offset;
  c10::SmallVector<int64_t, 5> sizes, strides;
};

std::shared_ptr<Moved> OffloadState::move_out(const Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const int64_t version = tensor._version();
  if (auto found = known.find(storage); found != known.end()) {
    auto moved = found->second.moved.lock();
    if (moved && found->second.storage.lock() && found->second.version == version) return moved;
    known.erase(found);
  }
  auto moved = std::make_shared<Moved>();
  moved->bytes = static_cast<int64_t>(tensor.storage().nbytes());
  moved->home = tensor.device();
  moved->order = next_order++;
  moved->storage = storage;
  const Tensor bytes = bytes_of(tensor);
  const bool on_device = tensor.device().type() != c10::kCPU;
  moved->host = ::torch::empty(
      {moved->bytes},
      ::torch::TensorOptions().dtype(::torch::kByte).pinned_memory(on_device && options.pin_memory));
  if (on_device) {
    const c10::Stream side = side_stream(tensor.device());
    record_event(current_stream(tensor.device())).block(side);
    {
      c10::StreamGuard guard(side);
      moved->host.copy_(bytes, /*non_blocking=*/options.pin_memory);
    }
    moved->out_done.emplace(record_event(side));
    moved->device = bytes;
    in_flight.push_back(moved);
    in_flight_bytes += moved->bytes;
    while (in_flight.size() > 1 && in_flight_bytes > options.in_flight_bytes) release_oldest();
  } else {
    moved->host.copy_(bytes);
  }
  known.emplace(storage, Known{tensor.storage().getWeakStorageImpl(), version, moved});
  by_order[moved->order] = moved;
  figures.to_host_bytes += moved->bytes;
  figures.to_host_count++;
  figures.host_bytes += moved->bytes;
  return moved;
}

// The computing stream waits for the copy, so that it may use the memory again.
void OffloadState::release_oldest() {
  const std::shared_ptr<Moved> moved = in_flight.front();
  in_flight.pop_front();
  in_flight_bytes -= moved->bytes;
  moved->out_done->block(current_stream(moved->home));
  moved->device.reset();
}

void OffloadState::fetch(Moved& moved) {
  if (moved.device.defined()) return;  // not gone yet, or fetched ahead
  figures.from_host_bytes += moved.bytes;
  figures.from_host_count++;
  auto options_there = ::torch::TensorOptions().dtype(::torch::kByte).device(moved.home);
  moved.device = ::torch::empty({moved.bytes}, options_there);
  moved.users = moved.packed;
  if (moved.home.type() == c10::kCPU) {
    moved.device.copy_(moved.host);
    return;
  }
  const c10::Stream side = side_stream(moved.home);
  record_event(current_stream(moved.home))
      .block(side);  // the memory is free on the computing stream from here on
  {
    c10::StreamGuard guard(side);
    moved.device.copy_(moved.host, /*non_blocking=*/options.pin_memory);
  }
  moved.in_done.emplace(record_event(side));
}

void OffloadState::prefetch_before(uint64_t order) {
  int ahead = options.prefetch;
  for (auto at = by_order.lower_bound(order); ahead > 0 && at != by_order.begin();) {
    --at;
    auto moved = at->second.lock();
    if (!moved || moved->packed == 0) continue;
    fetch(*moved);
    ahead--;
  }
}

Tensor OffloadState::unpack(Moved& moved, const Tensor& like, int64_t offset, at::IntArrayRef sizes,
                            at::IntArrayRef strides) {
  std::lock_guard<std::mutex> lock(mutex);
  // The backward pass has begun: what is still under way to the host is not to be waited for any
  // more, its memory is here.
  for (const auto& m : in_flight) m->users = m->packed;
  if (!in_flight.empty()) {
    for (const auto& m : in_flight) m->out_done->block(current_stream(m->home));
    in_flight.clear();
    in_flight_bytes = 0;
  }
  fetch(moved);
  if (moved.in_done) moved.in_done->block(current_stream(moved.home));
  Tensor out = ::torch::empty({0}, like.options());
  out.set_(moved.device.storage(), offset, sizes, strides);
  if (--moved.users <= 0) {
    moved.device.reset();  // the graph's views hold it now
    moved.in_done.reset();
  }
  prefetch_before(moved.order);
  return out;
}

void OffloadState::forget(const std::shared_ptr<Moved>& moved) {
  std::lock_guard<std::mutex> lock(mutex);
  if (--moved->packed > 0) return;
  figures.host_bytes -= moved->bytes;
  by_order.erase(moved->order);
  if (auto found = known.find(moved->storage);
      found != known.end() && found->second.moved.lock() == moved)
    known.erase(found);
  if (moved->device.defined() && moved->home.type() != c10::kCPU) {
    // A graph that is dropped while copies are under way: the memory goes back to the computing
    // stream after them.
    if (moved->out_done) moved->out_done->block(current_stream(moved->home));
    if (moved->in_done) moved->in_done->block(current_stream(moved->home));
  }
  for (auto at = in_flight.begin(); at != in_flight.end(); ++at)
    if (*at == moved) {
      in_flight_bytes -= moved->bytes;
      in_flight.erase(at);
      break;
    }
  moved->device.reset();
  moved->host.reset();
}

Offloaded::Offloaded(std::shared_ptr<OffloadState> of, std::shared_ptr<Moved> what,
                     const Tensor& tensor)
    : state(std::move(of)),
      moved(std::move(what)),
      like(::torch::empty({0}, tensor.options().requires_grad(false))),
      offset(tensor.storage_offset()),
      sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()) {
  moved->packed++;
  moved->users++;
}

Offloaded::~Offloaded() { state->forget(moved); }

Tensor Offloaded::unpack() { return state->unpack(*moved, like, offset, sizes, strides); }

}  // namespace detail

OffloadHooks::OffloadHooks(const OffloadOptions& options) {
  TORCH_CHECK(options.floor_bytes >= 0 && options.in_flight_bytes >= 0 && options.prefetch >= 0,
              "OffloadHooks: floor_bytes, in_flight_bytes and prefetch must not be negative");
  state_ = std::make_shared<detail::OffloadState>(options);
}

OffloadHooks::~OffloadHooks() = default;

std::unique_ptr<PackedTensor> OffloadHooks::pack(const ::torch::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  const bool move = tensor.device().type() == state_->options.from &&
                    tensor.layout() == c10::kStrided && tensor.has_storage() &&
                    static_cast<int64_t>(tensor.storage().nbytes()) >=
                        std::max<int64_t>(1, state_->options.floor_bytes) &&
                    !is_parameter_storage(tensor) &&
                    !state_->kept.count(tensor.storage().unsafeGetStorageImpl()) &&
                    !tensor.is_conj() && !tensor.is_neg();
  if (!move) {
    state_->figures.kept_count++;
    return nullptr;
  }
  auto moved = state_->move_out(tensor);
  return std::make_unique<detail::Offloaded>(state_, std::move(moved), tensor);
}

OffloadFigures OffloadHooks::figures() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->figures;
}

}  // namespace tonnage
