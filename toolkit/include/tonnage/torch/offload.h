// Saved tensors in host memory: what the forward pass saves is copied to pinned memory while the
// device goes on computing, and copied back, a little ahead, in the backward pass.
//
//   auto offload = std::make_shared<tonnage::OffloadHooks>();
//   {
//     tonnage::SavedTensorHooksGuard guard(offload);
//     loss = model->forward(x);
//   }
//   loss.backward();
//   offload->figures();     // bytes that were moved
//
// By storage: tensors that share memory are copied once, and come back as views of one copy.
// Parameters and their views stay where they are, as do storages below `floor_bytes`, and whatever
// `keep` names (tensors that live on anyway, as the input batch: moving them frees nothing). The
// device memory of a copy under way is held until the copy is done; at most `in_flight_bytes` of
// it, then the computing stream waits for the oldest copy. In the backward pass up to `prefetch`
// storages are fetched ahead.
//
// The values are the same bits. Streams: copies run on one side stream per device; the current
// stream is ordered after them by events, so memory is only ever used by the stream that it was
// allocated on. Host memory: pinned, from libtorch's caching host allocator, which rounds sizes up
// to a power of two. A saved tensor that is changed in place afterwards keeps its saved value.
// retain_graph works (a storage is fetched again); so does create_graph.
//
// Errors: c10::Error if the options make no sense; out of host memory comes out of the forward pass
// as the allocator's own exception. Threads: one forward pass at a time per object; the backward
// pass may run on other threads.
//
// Source of the method: Rhu et al. 2016, vDNN; PyTorch's torch.autograd.graph.save_on_cpu copies
// per tensor, without overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tonnage/torch/saved_tensor_hooks.h"

namespace tonnage {

struct OffloadOptions {
  int64_t floor_bytes =
      int64_t{1} << 20;  // smaller storages stay: copying them costs more time than they are worth
  int64_t in_flight_bytes =
      int64_t{256} << 20;  // device memory that waits for copies to end; at least one storage
  int prefetch = 2;        // storages fetched ahead in the backward pass; 0: none
  bool pin_memory = true;  // false: pageable memory, copies wait for the device
  std::vector<::torch::Tensor> keep{};  // tensors whose storages stay on the device
  // Device type whose tensors are moved. CPU tensors are moved to other host memory: for trying a
  // model without a GPU.
  c10::DeviceType from = c10::kCUDA;
};

struct OffloadFigures {
  int64_t to_host_bytes = 0, to_host_count = 0;      // storages copied out
  int64_t from_host_bytes = 0, from_host_count = 0;  // and back
  int64_t kept_count = 0;                            // saved tensors left where they were
  int64_t host_bytes = 0;                            // in host memory now
};

namespace detail {
struct OffloadState;
}

class OffloadHooks : public SavedTensorHooks {
 public:
  explicit OffloadHooks(const OffloadOptions& options = {});
  ~OffloadHooks() override;
  std::unique_ptr<PackedTensor> pack(const ::torch::Tensor& tensor) override;
  OffloadFigures figures() const;

 private:
  std::shared_ptr<detail::OffloadState> state_;
};

}  // namespace tonnage
