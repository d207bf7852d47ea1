// Saved tensors in fewer bits: what the forward pass saves is kept as bfloat16, or as int8 with one
// scale per block. The backward pass converts it back. So gradients are computed from rounded
// activations.
//
//   tonnage::SavedTensorHooksGuard guard(std::make_shared<tonnage::CompressHooks>(
//       tonnage::CompressOptions{.format = tonnage::CompressedFormat::kInt8}));
//   x = block->forward(x);
//
// Activations of linear layers, convolutions and GELU usually tolerate it. Leave normalisation,
// softmax and losses outside of the guard: they save outputs that should not be rounded. Parameters
// and their views, integers, and tensors below `floor_bytes` are kept as they are. A tensor that is
// saved twice is compressed once. An activation that lives on for another reason (it is also kept
// by code outside of the guard) is not freed by this.
//
// Bytes per element of a float32 tensor, of 4: bfloat16 2 (relative error up to 2^-8), int8 1 + 4 /
// block_size, one float32 scale per block (error up to the block's largest magnitude / 254).
// float16 and bfloat16 tensors are only compressed by kInt8. int8: 8-bit values need finite
// numbers; an infinity or NaN in a block makes the whole block NaN (so a GradScaler still sees it).
//
// Devices: any; the packed form stays on the tensor's. Owns: the packed tensors, as long as the
// graph needs them. Threads: as saved_tensor_hooks.h says; one object may serve several.
//
// Source of the method: block-wise quantisation as in Dettmers et al. 2022, 8-bit Optimizers via
// Block-wise Quantization; for saved activations Chen et al. 2021, ActNN (without its stochastic
// rounding).
#pragma once

#include <cstdint>
#include <memory>

#include "tonnage/torch/saved_tensor_hooks.h"

namespace tonnage {

enum class CompressedFormat : uint8_t { kBFloat16, kInt8 };

struct CompressOptions {
  CompressedFormat format = CompressedFormat::kBFloat16;
  int64_t block_size = 256;  // elements per scale (int8); 16 or more
  int64_t floor_bytes = int64_t{1} << 16;
};

namespace detail {
struct CompressState;
}

// Error: c10::Error if block_size or floor_bytes make no sense.
class CompressHooks : public SavedTensorHooks {
 public:
  explicit CompressHooks(const CompressOptions& options = {});
  std::unique_ptr<PackedTensor> pack(const ::torch::Tensor& tensor) override;

  // Bytes of all tensors that were compressed so far, before and after.
  int64_t full_bytes() const;
  int64_t compressed_bytes() const;

 private:
  std::shared_ptr<detail::CompressState> state_;
};

// The int8 form of a tensor: as many bytes as elements (padded to whole blocks), and a float32
// scale per block. On the tensor's device.
struct BlockwiseInt8 {
  ::torch::Tensor values;  // int8, (blocks, block_size)
  ::torch::Tensor scales;  // float32, (blocks, 1): largest magnitude / 127
};
BlockwiseInt8 quantize_blockwise(const ::torch::Tensor& tensor, int64_t block_size);
::torch::Tensor dequantize_blockwise(const BlockwiseInt8& packed, at::IntArrayRef sizes,
                                     c10::ScalarType dtype);

}  // namespace tonnage
