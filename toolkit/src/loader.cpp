#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "tonnage/torch/data.h"

namespace tonnage {

using ::torch::Tensor;

namespace prefetch {

// One batch on its way. Batch number i goes through slot i % (depth + 1).
struct Slot {
  explicit Slot(c10::DeviceType type) {
    if (type != c10::kCPU) {
      arrived.emplace(type);
      used.emplace(type);
    }
  }
  bool ready = false;
  bool has_copied = false, was_used = false;  // the events below have been recorded
  Batch batch;                                // on the device
  Batch staging;                              // pinned
  std::optional<c10::Event> arrived;          // the copy to the device is done
  std::optional<c10::Event> used;             // what was queued with the batch is done
};

inline bool fits(const Tensor& buffer, const Tensor& data) {
  return buffer.defined() && buffer.sizes() == data.sizes() &&
         buffer.scalar_type() == data.scalar_type();
}

}  // namespace prefetch

struct PrefetchLoader::Impl {
  BatchSource source;
  PrefetchOptions options;
  std::optional<c10::Stream> stream;       // for the copies
  std::optional<c10::Stream> user_stream;  // of the last next()
  std::vector<prefetch::Slot> slots;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t next_ticket = 0;   // batch that the next free worker makes
  int64_t handed_out = 0;    // batches that next() has returned
  int64_t end = INT64_MAX;   // first batch that there is not
  std::exception_ptr error;  // in the place of batch `end`
  bool stop = false;
  std::vector<std::thread> workers;

  prefetch::Slot& slot_of(int64_t ticket) {
    return slots[static_cast<size_t>(ticket) % slots.size()];
  }
  void work();
  void fill(prefetch::Slot& slot, Batch made);
};

// On a worker, without the lock: the slot is this worker's until it is ready.
void PrefetchLoader::Impl::fill(prefetch::Slot& slot, Batch made) {
  if (options.device.is_cpu()) {
    slot.batch = std::move(made);
    return;
  }
  const c10::StreamGuard on_stream(*stream);
  if (slot.was_used) slot.used->block(*stream);
  if (slot.has_copied) slot.arrived->synchronize();  // the pinned memory is about to be written
  slot.batch.resize(made.size());
  slot.staging.resize(made.size());
  for (size_t i = 0; i < made.size(); i++) {
    Tensor &on_device = slot.batch[i], &pinned = slot.staging[i];
    if (!prefetch::fits(pinned, made[i]))
      pinned = at::empty(made[i].sizes(), made[i].options().pinned_memory(true));
    // Someone kept the last batch: its memory stays theirs, also while their stream works on it.
    const bool kept =
        on_device.defined() && (on_device.use_count() > 1 || on_device.storage().use_count() > 1);
    if (kept && user_stream) on_device.record_stream(*user_stream);
    if (kept || !prefetch::fits(on_device, made[i])) {
      on_device = Tensor();
      on_device = at::empty(made[i].sizes(), made[i].options().device(options.device));
    }
    pinned.copy_(made[i]);
    on_device.copy_(pinned, /*non_blocking=*/true);
  }
  slot.arrived->record(*stream);
  slot.has_copied = true;
}

void PrefetchLoader::Impl::work() {
  ::torch::NoGradGuard no_grad;
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    // The slot of batch i is free once batch i - (depth + 1) has been given back, which next() does
    // when it hands out the one after.
    changed.wait(lock, [&] {
      return stop || next_ticket >= end || next_ticket < handed_out + options.depth;
    });
    if (stop || next_ticket >= end) return;
    const int64_t ticket = next_ticket++;
    lock.unlock();
    std::exception_ptr failure;
    bool ended = false;
    try {
      if (std::optional<Batch> made = source(ticket))
        fill(slot_of(ticket), std::move(*made));
      else
        ended = true;
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if ((ended || failure) && ticket < end) {
      end = ticket;
      error = failure;
    } else if (!ended && !failure) {
      slot_of(ticket).ready = true;
    }
    changed.notify_all();
  }
}

PrefetchLoader::PrefetchLoader(BatchSource source, PrefetchOptions options)
    : impl_(std::make_unique<Impl>()) {
  TORCH_CHECK(source, "PrefetchLoader: there is no source");
  TORCH_CHECK(options.depth > 0 && options.workers > 0,
              "PrefetchLoader: depth and workers must be positive; they are ", options.depth,
              " and ", options.workers);
  TORCH_CHECK(options.device.is_cpu() || options.device.is_cuda(), "PrefetchLoader: device is ",
              options.device, "; it must be a CPU or CUDA device");
  if (options.device.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(options.device.type());
    if (!options.device.has_index()) options.device = guard.getDevice();
    impl_->stream = guard.getStreamFromGlobalPool(options.device);
  }
  impl_->source = std::move(source);
  impl_->options = options;
  impl_->slots.reserve(static_cast<size_t>(options.depth) + 1);
  for (int64_t i = 0; i <= options.depth; i++) impl_->slots.emplace_back(options.device.type());
  for (int64_t i = 0; i < options.workers; i++)
    impl_->workers.emplace_back([impl = impl_.get()] { impl->work(); });
}

PrefetchLoader::~PrefetchLoader() {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->changed.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
  if (impl_->user_stream) {  // their work on the batches may still be queued
    for (prefetch::Slot& slot : impl_->slots)
      for (Tensor& tensor : slot.batch)
        if (tensor.defined()) tensor.record_stream(*impl_->user_stream);
  }
}

std::optional<Batch> PrefetchLoader::next() {
  Impl& impl = *impl_;
  std::optional<c10::Stream> current;
  if (impl.stream)
    current =
        c10::impl::VirtualGuardImpl(impl.options.device.type()).getStream(impl.options.device);
  std::unique_lock<std::mutex> lock(impl.mutex);
  const int64_t ticket = impl.handed_out;
  impl.changed.wait(lock, [&] { return impl.slot_of(ticket).ready || ticket >= impl.end; });
  if (ticket >= impl.end) {
    if (impl.error) std::rethrow_exception(impl.error);
    return std::nullopt;
  }
  if (ticket > 0 && current) {  // the last batch has been used
    prefetch::Slot& last = impl.slot_of(ticket - 1);
    last.used->record(*current);
    last.was_used = true;
  }
  prefetch::Slot& slot = impl.slot_of(ticket);
  slot.ready = false;
  if (current) slot.arrived->block(*current);
  impl.user_stream = current;
  Batch batch = slot.batch;
  if (impl.options.device.is_cpu()) slot.batch.clear();
  impl.handed_out++;
  lock.unlock();
  impl.changed.notify_all();
  return batch;
}

Augment::Augment(AugmentOptions options)
    : options_(std::move(options)),
      generator_(at::make_generator<at::CPUGeneratorImpl>(options_.seed)) {
  TORCH_CHECK(options_.crop >= 0 && options_.padding >= 0 && options_.cutout >= 0,
              "Augment: crop, padding and cutout must not be negative");
  TORCH_CHECK(options_.flip >= 0 && options_.flip <= 1, "Augment: flip is ", options_.flip,
              "; it must be in [0, 1]");
  for (double d : options_.deviation)
    TORCH_CHECK(d > 0, "Augment: a deviation is ", d, "; it must be positive");
}

Tensor Augment::operator()(const Tensor& images) {
  TORCH_CHECK(images.dim() == 4, "Augment: images are ", images.sizes(),
              "; they must be (n, c, h, w)");
  TORCH_CHECK(images.scalar_type() == at::kByte || at::isFloatingType(images.scalar_type()),
              "Augment: images are ", images.dtype(), "; they must be uint8 or floating");
  const int64_t n = images.size(0), channels = images.size(1), height = images.size(2),
                width = images.size(3), pad = options_.padding;
  const int64_t out_height = options_.crop ? options_.crop : height,
                out_width = options_.crop ? options_.crop : width;
  TORCH_CHECK(out_height <= height + 2 * pad && out_width <= width + 2 * pad, "Augment: a crop of ",
              out_height, " x ", out_width, " does not fit into images of ", height, " x ", width,
              " with padding ", pad);
  for (const auto* values : {&options_.mean, &options_.deviation})
    TORCH_CHECK(values->empty() || static_cast<int64_t>(values->size()) == channels,
                "Augment: ", values->size(), " means or deviations were given for ", channels,
                " channels");
  ::torch::NoGradGuard no_grad;
  const auto device = images.device();
  const auto choose = [&](int64_t most) {  // one of 0..most for each image, (n, 1)
    return at::randint(0, most + 1, {n, 1}, generator_, at::kLong);
  };
  const auto middle = [&](int64_t most) { return at::full({n, 1}, most / 2, at::kLong); };
  const int64_t most_rows = height + 2 * pad - out_height,
                most_columns = width + 2 * pad - out_width;
  const Tensor top = options_.random_crop ? choose(most_rows) : middle(most_rows),
               left = options_.random_crop ? choose(most_columns) : middle(most_columns);
  Tensor rows = top + at::arange(out_height, at::kLong).unsqueeze(0) -
                pad;  // (n, out_height), in the input; outside of it: zeros
  Tensor columns = left + at::arange(out_width, at::kLong).unsqueeze(0) - pad;
  const Tensor flipped = at::rand({n, 1}, generator_, at::kFloat).lt(options_.flip);
  columns = at::where(flipped, columns.flip(1), columns);
  const Tensor outside = (rows.lt(0) | rows.ge(height)).unsqueeze(2) |
                         (columns.lt(0) | columns.ge(width)).unsqueeze(1);
  Tensor hole;
  if (options_.cutout > 0) {
    const auto near = [&](const Tensor& centre, int64_t size) {
      return (at::arange(size, at::kLong).unsqueeze(0) - centre)
          .mul(2)
          .add(1)
          .abs()
          .le(options_.cutout);
    };
    hole = near(choose(out_height - 1), out_height).unsqueeze(2) &
           near(choose(out_width - 1), out_width).unsqueeze(1);
  }
  // One gather: every pixel from its place, (n, c, out_height * out_width) of flat indices.
  const Tensor places =
      (rows.clamp(0, height - 1).unsqueeze(2) * width + columns.clamp(0, width - 1).unsqueeze(1))
          .view({n, 1, -1})
          .to(device);
  Tensor out = images.reshape({n, channels, height * width})
                   .gather(2, places.expand({n, channels, out_height * out_width}));
  out = out.view({n, channels, out_height, out_width});
  if (pad > 0) out.masked_fill_(outside.unsqueeze(1).to(device), 0);
  if (out.scalar_type() == at::kByte) out = out.to(at::kFloat).div_(255);
  const auto per_channel = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).to(device, out.scalar_type()).view({1, channels, 1, 1});
  };
  if (!options_.mean.empty()) out.sub_(per_channel(options_.mean));
  if (!options_.deviation.empty()) out.div_(per_channel(options_.deviation));
  if (hole.defined()) out.masked_fill_(hole.unsqueeze(1).to(device), 0);
  return out;
}

}  // namespace tonnage
