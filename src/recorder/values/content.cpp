#include "recorder/values/content.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/device.h"
#include "recorder/values/philox.h"

namespace tonnage::recorder {
namespace {

// Attention masks of real numbers, which the host may read back (whether one is causal).
constexpr int64_t kMaskFloats = 1 << 20;

}  // namespace

uint64_t address_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const void* base = impl->storage().data();
  return reinterpret_cast<uint64_t>(base) +
         static_cast<uint64_t>(impl->storage_offset()) * impl->itemsize();
}

uint64_t span_bytes(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor.nbytes();
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<uint64_t>(last + 1) * tensor.element_size();
}

bool small_enough(at::ScalarType type, int64_t elements) {
  const Settings& s = recorder().settings;
  const auto count = static_cast<uint64_t>(elements);
  if (c10::isIntegralType(type, /*includeBool=*/true))
    return count * c10::elementSize(type) <= s.known_integer_bytes;
  return count <= s.known_float_elements;
}
bool small_enough(const at::Tensor& tensor) {
  return small_enough(tensor.scalar_type(), tensor.numel());
}

bool small_enough(const OpInfo& info, const at::Tensor& tensor) {
  return small_enough(tensor) || keeps_drawn_floats(info, tensor) ||
         (info.reach != Reach::kSmall &&
          tensor.nbytes() <= recorder().settings.known_integer_bytes);
}

bool needs_budget(const OpInfo& info, const at::Tensor& tensor) {
  if (small_enough(tensor) || keeps_drawn_floats(info, tensor)) return false;
  return info.reach == Reach::kPositions || tensor.numel() > kMaskFloats;
}

at::Tensor cpu_like(const at::Tensor& device) {
  return at::empty_strided(device.sizes(), device.strides(), host_options(device.scalar_type()));
}

at::Tensor load(const at::Tensor& device) {
  at::Tensor copy = cpu_like(device);
  const uint64_t span = span_bytes(device);
  if (span == 0) return copy;
  const uint64_t address = address_of(device);
  if (span <= recorder().settings.known_integer_bytes && copy.storage().nbytes() >= span &&
      bridge().content_get(address, copy.mutable_data_ptr(), span))
    return copy;
  // A view with gaps: only its own elements need to be known.
  at::Tensor dense = at::empty(device.sizes(), copy.options());
  char* out = static_cast<char*>(dense.mutable_data_ptr());
  const size_t item = device.element_size();
  bool known = true;
  const bool few = for_each_run(device, [&](int64_t offset, int64_t run, int64_t i) {
    if (known)
      known = bridge().content_get(address + static_cast<uint64_t>(offset) * item,
                                   out + static_cast<size_t>(i * run) * item,
                                   static_cast<size_t>(run) * item);
  });
  return few && known ? dense : at::Tensor();
}

namespace {

// Copies what is known of some elements, halving them until each half is known or unknown.
void overlay(uint64_t address, char* out, size_t elements, size_t item, int& pieces) {
  if (elements == 0 || pieces <= 0 || !bridge().content_any(address, elements * item)) return;
  pieces--;
  if (bridge().content_get(address, out, elements * item) || elements == 1) return;
  const size_t half = elements / 2;
  overlay(address, out, half, item, pieces);
  overlay(address + half * item, out + half * item, elements - half, item, pieces);
}

}  // namespace

at::Tensor load_or(const at::Tensor& device, int stand_in) {
  at::Tensor copy = cpu_like(device).fill_(stand_in);
  const size_t item = device.element_size();
  auto* out = static_cast<char*>(copy.mutable_data_ptr());
  int pieces = 1 << 16;
  for_each_run(device, [&](int64_t offset, int64_t run, int64_t) {
    overlay(address_of(device) + static_cast<uint64_t>(offset) * item,
            out + static_cast<size_t>(offset) * item, static_cast<size_t>(run), item, pieces);
  });
  return copy;
}

bool store(const at::Tensor& device, const at::Tensor& value) {
  const uint64_t span = span_bytes(device);
  if (span == 0) return true;
  if (!value.defined() || value.sizes() != device.sizes() ||
      value.scalar_type() != device.scalar_type() || !value.device().is_cpu() ||
      device::capturing()) {
    forget(device);
    return false;
  }
  const uint64_t address = address_of(device);
  forget_assumed(address, span);
  if (device.is_non_overlapping_and_dense()) {
    at::Tensor same = value.strides() == device.strides() ? value : cpu_like(device).copy_(value);
    bridge().content_set(address, same.const_data_ptr(), span);
    return true;
  }
  const at::Tensor dense = value.contiguous();
  const char* in = static_cast<const char*>(dense.const_data_ptr());
  const size_t item = device.element_size();
  const bool few = for_each_run(device, [&](int64_t offset, int64_t run, int64_t i) {
    bridge().content_set(address + static_cast<uint64_t>(offset) * item,
                         in + static_cast<size_t>(i * run) * item, static_cast<size_t>(run) * item);
  });
  if (!few) forget(device);
  return few;
}

void store_agreeing(const at::Tensor& device, const at::Tensor& one, const at::Tensor& other) {
  forget(device);
  if (!one.defined() || !other.defined() || one.sizes() != device.sizes() ||
      other.sizes() != device.sizes() || one.scalar_type() != device.scalar_type() ||
      device::capturing())
    return;
  const at::Tensor first = one.contiguous(), second = other.contiguous();
  const auto *a = static_cast<const char*>(first.const_data_ptr()),
             *b = static_cast<const char*>(second.const_data_ptr());
  const size_t item = device.element_size();
  const uint64_t address = address_of(device);
  constexpr size_t kMostPieces = 1 << 16;
  size_t pieces = 0;
  for_each_run(device, [&](int64_t offset, int64_t run, int64_t number) {
    const size_t begin = static_cast<size_t>(number * run), count = static_cast<size_t>(run);
    for (size_t i = 0; i < count;) {
      size_t end = i;
      while (end < count &&
             std::memcmp(a + (begin + end) * item, b + (begin + end) * item, item) == 0)
        end++;
      if (end > i && ++pieces <= kMostPieces)
        bridge().content_set(address + (static_cast<uint64_t>(offset) + i) * item,
                             a + (begin + i) * item, (end - i) * item);
      i = end + 1;
    }
  });
}

void forget(const at::Tensor& device) {
  const uint64_t span = span_bytes(device);
  if (span == 0) return;
  const uint64_t address = address_of(device);
  forget_assumed(address, span);
  if (!bridge().content_any(address, span)) return;
  const size_t item = device.element_size();
  const auto forget_run = [&](int64_t offset, int64_t run, int64_t) {
    bridge().content_forget(address + static_cast<uint64_t>(offset) * item,
                            static_cast<size_t>(run) * item);
  };
  // What lies in the gaps of a view is not its own.
  if (device.is_non_overlapping_and_dense() || !for_each_run(device, forget_run))
    bridge().content_forget(address, span);
}

}  // namespace tonnage::recorder
