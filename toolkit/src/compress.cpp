#include "tonnage/torch/compress.h"

#include <mutex>
#include <unordered_map>

namespace tonnage {
namespace detail {

using ::torch::Tensor;

// One compressed tensor: its memory order is kept (a channels-last activation comes back as one).
struct Compressed {
  CompressedFormat format = CompressedFormat::kBFloat16;
  Tensor rounded;  // bfloat16
  BlockwiseInt8 blocks;
  c10::SmallVector<int64_t, 5> sizes, strides;
  c10::ScalarType dtype = c10::kFloat;
  bool dense = false;  // no gaps and no overlaps: compressed in memory order
  Tensor restore() const;
};

struct CompressState {
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t version = 0;
    std::weak_ptr<Compressed> compressed;
  };
  CompressOptions options;
  std::mutex mutex;
  std::unordered_multimap<const c10::StorageImpl*, std::pair<int64_t, Known>>
      known;  // with the storage offset
  int64_t full_bytes = 0, compressed_bytes = 0;
};

struct CompressedTensor : PackedTensor {
  explicit CompressedTensor(std::shared_ptr<Compressed> of) : compressed(std::move(of)) {}
  Tensor unpack() override { return compressed->restore(); }
  std::shared_ptr<Compressed> compressed;
};

Tensor Compressed::restore() const {
  const int64_t count = c10::multiply_integers(sizes);
  Tensor flat = format == CompressedFormat::kBFloat16
                    ? rounded.to(dtype)
                    : dequantize_blockwise(blocks, {count}, dtype);
  return dense ? flat.as_strided(sizes, strides) : flat.view(at::IntArrayRef(sizes));
}

static std::shared_ptr<Compressed> compress(const Tensor& tensor, const CompressOptions& options) {
  auto out = std::make_shared<Compressed>();
  out->format = options.format;
  out->sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  out->strides.assign(tensor.strides().begin(), tensor.strides().end());
  out->dtype = tensor.scalar_type();
  out->dense = tensor.is_non_overlapping_and_dense();
  const Tensor flat = out->dense ? tensor.as_strided({tensor.numel()}, {1}) : tensor.reshape({-1});
  if (options.format == CompressedFormat::kBFloat16)
    out->rounded = flat.to(::torch::kBFloat16);
  else
    out->blocks = quantize_blockwise(flat, options.block_size);
  return out;
}

static int64_t bytes_of(const Compressed& c) {
  return c.format == CompressedFormat::kBFloat16
             ? static_cast<int64_t>(c.rounded.nbytes())
             : static_cast<int64_t>(c.blocks.values.nbytes() + c.blocks.scales.nbytes());
}

}  // namespace detail

BlockwiseInt8 quantize_blockwise(const ::torch::Tensor& tensor, int64_t block_size) {
  TORCH_CHECK_VALUE(block_size >= 1, "quantize_blockwise: block_size must be positive, not ",
                    block_size);
  TORCH_CHECK(tensor.defined() && tensor.is_floating_point(),
              "quantize_blockwise: needs a floating point tensor");
  const int64_t count = tensor.numel(), blocks = (count + block_size - 1) / block_size;
  ::torch::Tensor flat = tensor.reshape({-1});
  if (blocks * block_size != count)
    flat = ::torch::constant_pad_nd(flat, {0, blocks * block_size - count});
  flat = flat.view({blocks, block_size});
  BlockwiseInt8 out;
  out.scales = flat.abs().amax(1, /*keepdim=*/true).to(::torch::kFloat).div_(127);
  // A block of zeros has scale 0: divided by 1, it stays zero.
  const ::torch::Tensor divisor =
      ::torch::where(out.scales == 0, ::torch::ones_like(out.scales), out.scales);
  out.values = flat.div(divisor).round_().clamp_(-127, 127).to(::torch::kChar);
  return out;
}

::torch::Tensor dequantize_blockwise(const BlockwiseInt8& packed, at::IntArrayRef sizes,
                                     c10::ScalarType dtype) {
  const int64_t count = c10::multiply_integers(sizes);
  TORCH_CHECK(packed.values.defined() && packed.scales.defined() && packed.values.numel() >= count,
              "dequantize_blockwise: ", sizes, " has more elements than were packed");
  // An infinite or NaN scale makes its block NaN: 0 * inf, too.
  ::torch::Tensor full = packed.values.to(::torch::kFloat).mul_(packed.scales);
  if (dtype != ::torch::kFloat) full = full.to(dtype);
  full = full.view({-1});
  if (full.numel() != count) full = full.narrow(0, 0, count);
  return full.view(sizes);
}

CompressHooks::CompressHooks(const CompressOptions& options)
    : state_(std::make_shared<detail::CompressState>()) {
  TORCH_CHECK_VALUE(options.block_size >= 16 && options.floor_bytes >= 0,
                    "CompressHooks: block_size must be 16 or more, and floor_bytes not negative");
  state_->options = options;
}

std::unique_ptr<PackedTensor> CompressHooks::pack(const ::torch::Tensor& tensor) {
  const CompressOptions& options = state_->options;
  const bool wide = tensor.scalar_type() == c10::kFloat || tensor.scalar_type() == c10::kDouble;
  const bool narrow = tensor.scalar_type() == c10::kHalf || tensor.scalar_type() == c10::kBFloat16;
  if (!(wide || (narrow && options.format == CompressedFormat::kInt8)) ||
      tensor.layout() != c10::kStrided || !tensor.has_storage() || tensor.numel() == 0 ||
      static_cast<int64_t>(tensor.nbytes()) < options.floor_bytes || is_parameter_storage(tensor))
    return nullptr;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const int64_t version = tensor._version();
  std::lock_guard<std::mutex> lock(state_->mutex);
  auto [begin, end] = state_->known.equal_range(storage);
  while (begin != end) {
    auto& [offset, known] = begin->second;
    auto compressed = known.compressed.lock();
    if (!compressed || !known.storage.lock() || known.version != version) {
      begin = state_->known.erase(begin);
      continue;
    }
    if (offset == tensor.storage_offset() && at::IntArrayRef(compressed->sizes) == tensor.sizes() &&
        at::IntArrayRef(compressed->strides) == tensor.strides() &&
        compressed->dtype == tensor.scalar_type())
      return std::make_unique<detail::CompressedTensor>(std::move(compressed));
    ++begin;
  }
  auto compressed = detail::compress(tensor, options);
  state_->full_bytes += static_cast<int64_t>(tensor.nbytes());
  state_->compressed_bytes += detail::bytes_of(*compressed);
  if (state_->known.size() > 4096)  // storages that are long gone
    std::erase_if(state_->known,
                  [](const auto& entry) { return entry.second.second.compressed.expired(); });
  state_->known.emplace(
      storage, std::pair(tensor.storage_offset(),
                         detail::CompressState::Known{tensor.storage().getWeakStorageImpl(),
                                                      version, compressed}));
  return std::make_unique<detail::CompressedTensor>(std::move(compressed));
}

int64_t CompressHooks::full_bytes() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->full_bytes;
}

int64_t CompressHooks::compressed_bytes() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->compressed_bytes;
}

}  // namespace tonnage
