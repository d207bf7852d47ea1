#include "recorder/values/engine.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstring>
#include <optional>

#include "recorder/observe/capture.h"
#include "recorder/values/data_dependent.h"
#include "recorder/values/plain_cpu.h"

namespace tonnage::recorder {
namespace {

constexpr int kGiveUpAfter = 4;
constexpr size_t kMaxRuns = 1 << 16;  // pieces of a strided tensor that are handled one by one

at::Tensor cpu_like(const at::Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(),
                           at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
}

// Random operators draw from a generator of their own, so that the program's random numbers stay
// what they were.
at::Generator& private_generator() {
  static auto* generator = new at::Generator(at::detail::createCPUGenerator(0x746f6e6e616765));
  return *generator;
}

bool is_integer(const at::Tensor& t) {
  return c10::isIntegralType(t.scalar_type(), /*includeBool=*/true);
}

// Calls f(element offset, elements) for every run of adjacent elements; false if there are too many.
template <class F>
bool for_each_run(const at::Tensor& t, F f) {
  int64_t run = 1;
  int64_t inner = t.dim();
  while (inner > 0 && (t.size(inner - 1) == 1 || t.stride(inner - 1) == run))
    run *= t.size(--inner);
  int64_t count = 1;
  for (int64_t d = 0; d < inner; d++) count *= t.size(d);
  if (static_cast<uint64_t>(count) > kMaxRuns) return false;
  std::vector<int64_t> index(static_cast<size_t>(inner), 0);
  for (int64_t i = 0; i < count; i++) {
    int64_t offset = 0;
    for (int64_t d = 0; d < inner; d++) offset += index[static_cast<size_t>(d)] * t.stride(d);
    f(offset, run, i);
    for (int64_t d = inner - 1; d >= 0 && ++index[static_cast<size_t>(d)] == t.size(d); d--)
      index[static_cast<size_t>(d)] = 0;
  }
  return true;
}

enum class Input { kKnown, kUnknown, kOpaque, kHost };

// Cheap look at one input; does not read content.
Input classify(const at::Tensor& t) {
  if (!t.defined()) return Input::kHost;
  const auto keys = t.unsafeGetTensorImpl()->key_set();
  if (!keys.has_backend(c10::BackendComponent::CUDABit)) {
    if (keys.has_backend(c10::BackendComponent::CPUBit) && keys.has(c10::DispatchKey::Dense) &&
        !keys.has(c10::DispatchKey::Python))
      return Input::kHost;
    return Input::kOpaque;
  }
  if (!plain_cuda(t)) return Input::kOpaque;
  if (t.numel() == 0) return Input::kKnown;
  if (static_cast<uint64_t>(t.numel()) * t.element_size() > recorder().settings.known_integer_bytes)
    return Input::kUnknown;
  return bridge().content_any(address_of(t), t.element_size()) ? Input::kKnown : Input::kUnknown;
}

// Only puts elements in their places: scatter_ with a reduction and index_put_ with accumulation
// also work with what was there.
bool only_places(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  if (!info.any_may_be_unknown) return false;
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    if (inputs[i].isString() || (i == 3 && inputs[i].isBool() && inputs[i].toBool())) return false;
  return true;
}

struct Verdict {
  bool cuda = false;  // concerns the device at all
  bool opaque = false;
  bool candidate = true;
  bool partial = false;  // a candidate some of whose arguments are unknown
};

Verdict judge(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  Verdict v;
  bool some_known = false;
  const bool may_stand_in = only_places(info, inputs);
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++) {
    const c10::IValue& value = inputs[i];
    if (value.isDevice()) {
      v.cuda |= value.toDevice().is_cuda();
      continue;
    }
    bool written = info.writes[i], write_only = info.write_only[i];
    for_each_tensor(info.kinds[i], value, [&](const at::Tensor& t, int element) {
      if (!t.defined() || v.opaque) return;
      if (!v.candidate && v.cuda) {  // dismissed already; only odd tensors matter now, and an odd
                                     // list begins with one
        if (element <= 0 && t.is_cuda() && !plain_cuda(t)) v.opaque = true;
        return;
      }
      switch (classify(t)) {
        case Input::kOpaque: v.opaque = true; break;
        case Input::kHost: v.candidate &= !written; break;
        case Input::kUnknown:
          v.cuda = true;
          if (may_stand_in && info.may_be_unknown[i] && small_enough(info, t))
            v.partial = true;
          else if (!write_only)
            v.candidate = false;
          if (write_only && !small_enough(info, t)) v.candidate = false;
          break;
        case Input::kKnown:
          v.cuda = true;
          some_known = true;
          if (written && !small_enough(info, t)) v.candidate = false;
          break;
      }
    });
    if (v.opaque) break;
  }
  if (v.partial && !some_known) v.candidate = false;
  return v;
}

void forget_written(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    if (info.writes[i])
      for_each_tensor(info.kinds[i], inputs[i], [](const at::Tensor& t, int) {
        if (t.defined() && plain_cuda(t)) forget(t);
      });
  for (int i : info.hidden_writes)
    if (static_cast<size_t>(i) < inputs.size())
      for_each_tensor(info.kinds[static_cast<size_t>(i)], inputs[static_cast<size_t>(i)],
                      [](const at::Tensor& t, int) {
                        if (t.defined() && plain_cuda(t)) forget(t);
                      });
}

// A copy that the driver itself sees as a copy, or one that ends on the host.
bool copy_is_drivers(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const at::Tensor& to = inputs[0].toTensor();
  const at::Tensor& from = inputs[1].toTensor();
  if (!to.defined() || !from.defined()) return true;
  if (!to.is_cuda() || !from.is_cuda())
    return true;  // pieces of it that are kernels are copy_ calls inside
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense();
}

// In place of an unknown argument; undefined where nothing can be.
at::Tensor stand_in(const OpInfo& info, PendingCompute& pending, size_t argument,
                    const at::Tensor& device) {
  if (!pending.may_stand_in || !info.may_be_unknown[argument] || !small_enough(info, device))
    return {};
  pending.partial = true;
  return cpu_like(device).fill_(pending.stand_in);
}

// Keeps the call's inputs; loads what the operator changes.
bool keep_inputs(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs, PendingCompute& out) {
  out.inputs.assign(inputs.begin(), inputs.end());
  bool complete = true;
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++) {
    if (!info.writes[i]) continue;
    for_each_tensor(info.kinds[i], inputs[i], [&](const at::Tensor& t, int element) {
      if (!t.defined() || !t.is_cuda() || !complete) return;
      at::Tensor copy = info.write_only[i] ? cpu_like(t) : load(t);
      if (!copy.defined()) copy = stand_in(info, out, i, t);
      if (!copy.defined()) complete = false;
      out.written.push_back({i, element, t, copy});
    });
  }
  return complete;
}

// The value as an element of the type, in the low bytes; nothing where the type is not one of these.
std::optional<uint64_t> element_bits(at::ScalarType type, const at::Scalar& value) {
  uint64_t bits = 0;
  const auto put = [&](auto element) { std::memcpy(&bits, &element, sizeof element); };
  switch (type) {
    case at::kFloat: put(value.to<float>()); break;
    case at::kDouble: put(value.to<double>()); break;
    case at::kHalf: put(value.to<at::Half>()); break;
    case at::kBFloat16: put(value.to<at::BFloat16>()); break;
    case at::kLong: put(value.to<int64_t>()); break;
    case at::kInt: put(value.to<int32_t>()); break;
    case at::kShort: put(value.to<int16_t>()); break;
    case at::kChar: put(value.to<int8_t>()); break;
    case at::kByte: put(value.to<uint8_t>()); break;
    case at::kBool: put(value.to<bool>()); break;
    default: return std::nullopt;
  }
  return bits;
}

// fill_ with a known value: the content is a pattern, which costs nothing however large the tensor
// is. Null where it is none.
std::unique_ptr<PendingFormula> fill_formula(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() != 2 || !inputs[0].isTensor() || !inputs[1].isScalar()) return nullptr;
  const at::Tensor& device = inputs[0].toTensor();
  if (!device.is_non_overlapping_and_dense() || device.numel() == 0) return nullptr;
  std::optional<uint64_t> bits;
  try {
    bits = element_bits(device.scalar_type(), inputs[1].toScalar());
  } catch (...) {  // the value does not fit: the operator itself will say so
  }
  if (!bits) return nullptr;
  auto width = static_cast<unsigned>(device.element_size());
  if (width == 8 && *bits == 0) width = 1;
  if (width == 8 && (*bits >> 32) == (*bits & 0xffffffff)) width = 4;
  if (width > 4) return nullptr;
  auto formula = std::make_unique<PendingFormula>();
  *formula = {device, static_cast<uint32_t>(*bits), width, 0, 0};
  return formula;
}

// arange(start, end, step, out) of whole numbers.
std::unique_ptr<PendingFormula> range_formula(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() != 4 || !inputs[0].isInt() || !inputs[1].isInt() || !inputs[2].isInt() ||
      !inputs[3].isTensor())
    return nullptr;
  const at::Tensor& device = inputs[3].toTensor();
  if (device.scalar_type() != at::kLong && device.scalar_type() != at::kInt) return nullptr;
  auto formula = std::make_unique<PendingFormula>();
  *formula = {device, 0, 0, inputs[0].toInt(), inputs[2].toInt()};
  return formula;
}

void store_range(ThreadState& thread, const PendingFormula& range) {
  const at::Tensor& device = range.target;  // has its size now
  if (!small_enough(device)) return forget(device);
  const auto write = [&](auto element) {
    std::vector<decltype(element)> elements(static_cast<size_t>(device.numel()));
    int64_t value = range.start;
    for (auto& e : elements) {
      e = static_cast<decltype(element)>(value);
      value =
          static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(range.step));
    }
    if (device.is_contiguous())
      return bridge().content_set(address_of(device), elements.data(),
                                  elements.size() * sizeof element);
    PlainCpuScope scope(thread);
    at::Tensor host =
        at::empty(device.sizes(), at::TensorOptions().dtype(device.scalar_type()).device(at::kCPU));
    std::memcpy(host.mutable_data_ptr(), elements.data(), elements.size() * sizeof element);
    store(device, host);
  };
  if (device.scalar_type() == at::kLong)
    write(int64_t{});
  else
    write(int32_t{});
}

void store_formula(ThreadState& thread, const PendingFormula& formula) {
  const at::Tensor& device = formula.target;
  if (device.numel() == 0) return;
  if (capturing()) return forget(device);
  if (formula.width == 0)
    store_range(thread, formula);
  else
    bridge().content_fill(address_of(device), formula.pattern, formula.width, span_bytes(device));
  recorder().counters.computed.fetch_add(1, std::memory_order_relaxed);
}

// Host-to-device copies keep their bytes as known content unless they are weights or large
// floating-point data, which nothing that is computed reads.
constexpr int64_t kKeptFloats = 1 << 20;
int upload_policy(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return 0;
  const at::Tensor& to = inputs[0].toTensor();
  const at::Tensor& from = inputs[1].toTensor();
  if (!to.defined() || !from.defined() || !to.is_cuda() || !from.device().is_cpu() ||
      is_integer(from))
    return 0;
  return from.numel() > kKeptFloats || (from.requires_grad() && from.numel() > 1) ? -1 : 0;
}

}  // namespace

bool plain_cuda(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kOdd(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
       c10::DispatchKey::ZeroTensor, c10::DispatchKey::Named});
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto keys = impl->key_set();
  return keys.has_backend(c10::BackendComponent::CUDABit) && keys.has(c10::DispatchKey::Dense) &&
         !keys.has_any(kOdd) && impl->has_storage() &&
         impl->storage().device_type() == c10::DeviceType::CUDA;
}

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

// Attention masks of real numbers, which the host may read back (whether one is causal).
constexpr int64_t kMaskFloats = 1 << 20;
bool small_enough(const OpInfo& info, const at::Tensor& tensor) {
  return small_enough(tensor) || keeps_drawn_floats(info, tensor) ||
         (info.shapes_masks && tensor.numel() <= kMaskFloats);
}

at::Tensor load(const at::Tensor& device) {
  at::Tensor copy = cpu_like(device);
  uint64_t span = span_bytes(device);
  if (span == 0) return copy;
  uint64_t address = address_of(device);
  if (span <= recorder().settings.known_integer_bytes && copy.storage().nbytes() >= span &&
      bridge().content_get(address, copy.mutable_data_ptr(), span))
    return copy;
  // A view with gaps: only its own elements need to be known.
  at::Tensor dense = at::empty(device.sizes(), copy.options());
  char* out = static_cast<char*>(dense.mutable_data_ptr());
  size_t item = device.element_size();
  bool known = true;
  bool few = for_each_run(device, [&](int64_t offset, int64_t run, int64_t i) {
    if (known)
      known = bridge().content_get(address + static_cast<uint64_t>(offset) * item,
                                   out + static_cast<size_t>(i * run) * item,
                                   static_cast<size_t>(run) * item);
  });
  return few && known ? dense : at::Tensor();
}

bool store(const at::Tensor& device, const at::Tensor& value) {
  uint64_t span = span_bytes(device);
  if (span == 0) return true;
  uint64_t address = address_of(device);
  if (!value.defined() || value.sizes() != device.sizes() ||
      value.scalar_type() != device.scalar_type() || !value.device().is_cpu() || capturing()) {
    forget(device);
    return false;
  }
  if (device.is_non_overlapping_and_dense()) {
    at::Tensor same = value.strides() == device.strides() ? value : cpu_like(device).copy_(value);
    bridge().content_set(address, same.const_data_ptr(), span);
    return true;
  }
  at::Tensor dense = value.contiguous();
  const char* in = static_cast<const char*>(dense.const_data_ptr());
  size_t item = device.element_size();
  bool few = for_each_run(device, [&](int64_t offset, int64_t run, int64_t i) {
    bridge().content_set(address + static_cast<uint64_t>(offset) * item,
                         in + static_cast<size_t>(i * run) * item, static_cast<size_t>(run) * item);
  });
  if (!few) forget(device);
  return few;
}

// The elements in which two results agree become the content. Of memory that was written in part,
// the rest stays what it was.
static void store_agreeing(const at::Tensor& device, const at::Tensor& one, const at::Tensor& other,
                           bool written_in_part) {
  if (!one.defined() || !other.defined() || one.sizes() != other.sizes()) return forget(device);
  const at::Tensor first = one.contiguous(), second = other.contiguous();
  const auto *a = static_cast<const char*>(first.const_data_ptr()),
             *b = static_cast<const char*>(second.const_data_ptr());
  const size_t item = device.element_size(), count = static_cast<size_t>(device.numel());
  if (std::memcmp(a, b, count * item) == 0) {
    store(device, one);
    return;
  }
  if (!written_in_part || !device.is_contiguous() || capturing()) forget(device);
  if (!device.is_contiguous() || capturing() || first.scalar_type() != device.scalar_type()) return;
  size_t runs = 0;
  for (size_t i = 0; i < count;) {
    size_t end = i;
    while (end < count && std::memcmp(a + end * item, b + end * item, item) == 0) end++;
    if (end > i && ++runs > kMaxRuns) return;
    if (end > i)
      bridge().content_set(address_of(device) + i * item, a + i * item, (end - i) * item);
    i = end + 1;
  }
}

void forget(const at::Tensor& device) {
  uint64_t span = span_bytes(device);
  if (span == 0) return;
  uint64_t address = address_of(device);
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

bool prepare(const OpInfo& info, PendingCompute& pending) {
  if (!pending.arguments.empty()) return true;
  bool complete = true;
  auto copy = [&](size_t i, const at::Tensor& t, int element) -> at::Tensor {
    if (!t.defined() || !t.is_cuda()) return t;
    for (const auto& w : pending.written)
      if (w.argument == i && w.element == element) return w.copy;
    at::Tensor made = complete ? load(t) : at::Tensor();
    if (!made.defined() && complete) made = stand_in(info, pending, i, t);
    if (!made.defined()) complete = false;
    return made;
  };
  std::vector<c10::IValue> arguments;
  arguments.reserve(pending.inputs.size());
  for (size_t i = 0; i < pending.inputs.size(); i++) {
    const c10::IValue& value = pending.inputs[i];
    if (value.isTensor()) {
      arguments.emplace_back(copy(i, value.toTensor(), -1));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      int n = 0;
      for (const at::Tensor& t : value.toTensorList()) list.push_back(copy(i, t, n++));
      arguments.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      int n = 0;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
        if (t && t->defined())
          list.push_back(copy(i, *t, n));
        else
          list.push_back(std::nullopt);
        n++;
      }
      arguments.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      arguments.emplace_back(c10::Device(c10::kCPU));
    } else if (static_cast<int>(i) == info.generator_argument) {
      arguments.emplace_back(private_generator());
    } else {
      arguments.emplace_back(value);
    }
    if (!complete) return false;
  }
  pending.arguments = std::move(arguments);
  return true;
}

bool compute(const OpInfo& info, std::vector<c10::IValue>& arguments) {
  try {
    info.handle.callBoxed(&arguments);
    recorder().counters.computed.fetch_add(1, std::memory_order_relaxed);
    return true;
  } catch (...) {
    info.failures.fetch_add(1, std::memory_order_relaxed);
    recorder().counters.failed.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
}

// Elements that come out the same whatever the unknown ones are, are known.
static void finish_partial(const OpInfo& info, PendingCompute& pending,
                           c10::ArrayRef<const c10::IValue> outputs) {
  PendingCompute other;
  other.may_stand_in = true;
  other.stand_in = 1;
  std::vector<c10::IValue> results, others;
  const c10::ArrayRef<const c10::IValue> inputs(pending.inputs.data(), pending.inputs.size());
  bool done = keep_inputs(info, inputs, other) && prepare(info, pending) && prepare(info, other);
  if (done) {
    results = pending.arguments;
    others = other.arguments;
    done = compute(info, results) && compute(info, others) && results.size() == others.size() &&
           (results.size() == outputs.size() || outputs.empty());
  }
  for (size_t i = 0; i < pending.written.size(); i++) {
    if (done)
      store_agreeing(pending.written[i].device, pending.written[i].copy, other.written[i].copy,
                     /*written_in_part=*/true);
    else
      forget(pending.written[i].device);
  }
  for (size_t i = 0; i < outputs.size(); i++) {
    if (info.result_is_argument[i]) continue;
    for_each_tensor(info.result_kinds[i], outputs[i], [&](const at::Tensor& t, int element) {
      if (!t.defined() || !plain_cuda(t)) return;
      if (done && element < 0 && results[i].isTensor() && others[i].isTensor() &&
          small_enough(info, t))
        store_agreeing(t, results[i].toTensor(), others[i].toTensor(), /*written_in_part=*/false);
      else
        forget(t);
    });
  }
}

void before_operator(ThreadState& thread, OpFrame& frame) {
  const OpInfo& info = *frame.info;
  auto inputs = inputs_of(*frame.function, info);
  if (info.special == Special::kCopy && copy_is_drivers(inputs)) {
    frame.opaque = true;
    frame.upload_policy = upload_policy(inputs) != 0;
    if (frame.upload_policy) bridge().set_upload_policy(-1);
    return;
  }
  Verdict verdict = judge(info, inputs);
  if (verdict.opaque || !verdict.cuda) {
    frame.opaque = true;
    if (info.special == Special::kCoalesce &&
        recorder().settings.known_values) {  // sparse: its indices are followed
      bridge().operator_depth_add(1);
      frame.depth_added = true;
      PlainCpuScope scope(thread);
      before_selection(thread, frame);
    }
    return;
  }
  bridge().operator_depth_add(1);
  frame.depth_added = true;
  if (recorder().settings.known_values) {
    if (info.special == Special::kFill) frame.formula = fill_formula(inputs);
    if (info.special == Special::kRange) frame.formula = range_formula(inputs);
    if (frame.formula) return;
  }
  bool able = info.failures.load(std::memory_order_relaxed) < kGiveUpAfter &&
              (!info.random || info.generator_argument >= 0) && info.hidden_writes.empty() &&
              recorder().settings.known_values;
  if (verdict.candidate && able && info.special != Special::kScalarRead) {
    auto pending = std::make_unique<PendingCompute>();
    std::optional<PlainCpuScope> scope;
    if (info.any_writes) scope.emplace(thread);  // else nothing is loaded yet
    pending->may_stand_in = only_places(info, inputs);
    pending->partial = verdict.partial;
    pending->random = random_state(info, inputs);
    if (keep_inputs(info, inputs, *pending)) frame.pending = std::move(pending);
  }
  if (info.before_call && recorder().settings.known_values) {
    PlainCpuScope scope(thread);
    before_selection(thread, frame);
  }
  if (!frame.pending && (info.any_writes || !info.hidden_writes.empty()) &&
      info.special != Special::kFoundInf)
    forget_written(info, inputs);
}

void after_operator(ThreadState& thread, OpFrame& frame) {
  const OpInfo& info = *frame.info;
  if (info.special == Special::kCoalesce && frame.indices.defined()) {
    PlainCpuScope scope(thread);
    return after_coalesce(frame);
  }
  if (frame.opaque || !frame.depth_added) return;
  if (frame.delegated) return;  // the call inside it was followed
  auto outputs = outputs_of(*frame.function, info);
  auto own_result = [&](size_t i) {
    return i < info.result_is_argument.size() && info.result_is_argument[i];
  };
  if (frame.formula) {
    if (outputs.empty()) return forget(frame.formula->target);  // it failed
    return store_formula(thread, *frame.formula);
  }
  if (frame.pending && frame.pending->partial) {
    PlainCpuScope scope(thread);
    finish_partial(info, *frame.pending, outputs);
  } else if (frame.pending) {
    bool fits = true;
    bool wanted = !frame.pending->written.empty() || frame.pending->has_results;
    for (size_t i = 0; i < outputs.size(); i++)
      if (!own_result(i))
        for_each_tensor(info.result_kinds[i], outputs[i], [&](const at::Tensor& t, int) {
          wanted |= t.defined() && t.is_cuda();
          if (t.defined() && t.is_cuda() && (!plain_cuda(t) || !small_enough(info, t)))
            fits = false;
        });
    PendingCompute& pending = *frame.pending;
    PlainCpuScope scope(thread);
    std::vector<c10::IValue> results;
    bool done = false;
    if (pending.has_results) {
      results = pending.results;
      done = true;
    } else if (wanted && fits && prepare(info, pending)) {
      if (pending.partial) return finish_partial(info, pending, outputs);
      results = pending.arguments;
      done = draw(info, pending.random, results) || compute(info, results);
    }
    done &= results.size() == outputs.size() || outputs.empty();
    for (const auto& w : pending.written) {
      if (done)
        store(w.device, w.copy);
      else
        forget(w.device);
    }
    for (size_t i = 0; i < outputs.size(); i++) {
      if (own_result(i)) continue;
      for_each_tensor(info.result_kinds[i], outputs[i], [&](const at::Tensor& t, int element) {
        if (!t.defined() || !plain_cuda(t)) return;
        at::Tensor value;
        if (done && results[i].isTensor() && element < 0) value = results[i].toTensor();
        if (done && results[i].isTensorList() && element >= 0 &&
            static_cast<size_t>(element) < results[i].toTensorList().size())
          value = results[i].toTensorList().get(static_cast<size_t>(element));
        if (done && fits)
          store(t, value);
        else
          forget(t);
      });
    }
    if (!done) frame.pending.reset();  // something in it was unknown after all
  } else {
    for (size_t i = 0; i < outputs.size(); i++)
      if (!own_result(i))
        for_each_tensor(info.result_kinds[i], outputs[i], [](const at::Tensor& t, int) {
          if (t.defined() && plain_cuda(t)) forget(t);
        });
  }
  if ((frame.read_answered || (info.after_call && !frame.pending)) &&
      recorder().settings.known_values) {
    PlainCpuScope scope(thread);
    after_selection(thread, frame);
  }
}

}  // namespace tonnage::recorder
