#include "recorder/values/data_dependent.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/unique_dim.h>

#include <atomic>
#include <climits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "recorder/observe/operator_observer.h"
#include "recorder/values/engine.h"

namespace tonnage::recorder {
namespace {

constexpr int64_t kMaxInventedIndices = 1 << 20;

// Results of all() over unknown data that a host read may ask for: checks are taken to pass. And
// what any() of a comparison of several unknown numbers would be.
struct Assumptions {
  std::mutex mutex;
  std::unordered_set<uint64_t> true_at;
  std::unordered_map<uint64_t, bool> any_at;
  std::atomic<size_t> size{0};

  void add_any(uint64_t address, bool any) {
    std::lock_guard<std::mutex> lock(mutex);
    if (any_at.size() >= 4096) any_at.clear();
    any_at[address] = any;
    size = true_at.size() + any_at.size();
  }
  std::optional<bool> any_of(uint64_t address) {
    if (size.load(std::memory_order_relaxed) == 0) return std::nullopt;
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = any_at.find(address);
    return found == any_at.end() ? std::nullopt : std::optional<bool>(found->second);
  }

  void add(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    if (true_at.size() >= 4096) true_at.clear();
    true_at.insert(address);
    size = true_at.size() + any_at.size();
  }
  bool contains(uint64_t address) {
    if (size.load(std::memory_order_relaxed) == 0) return false;
    std::lock_guard<std::mutex> lock(mutex);
    return true_at.count(address) != 0;
  }
  void remove(uint64_t address) {
    if (size.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    true_at.erase(address);
    any_at.erase(address);
    size = true_at.size() + any_at.size();
  }
};

Assumptions& assumptions() {
  static Assumptions* instance = new Assumptions();
  return *instance;
}

void post(OpFrame& frame, int64_t value) {
  bridge().post_read(value);
  frame.posted = true;
}

int64_t assume(const OpFrame& frame, int64_t bound) {
  double share = recorder().settings.assume_selected;
  int64_t taken = bound;
  if (share >= 0 && share < 1)
    taken = static_cast<int64_t>(static_cast<double>(bound) * share + 0.5);
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAssumedSize;
  event.value = static_cast<uint64_t>(taken);
  event.size_bytes = static_cast<uint64_t>(bound);
  event.name = frame.info ? frame.info->name_id : 0;
  fill_context(&event);
  bridge().emit(&event);
  return taken;
}

const at::Tensor* tensor_argument(const OpFrame& frame, size_t i) {
  auto inputs = inputs_of(*frame.function, *frame.info);
  if (i >= inputs.size() || !inputs[i].isTensor() || !inputs[i].toTensor().defined())
    return nullptr;
  return &inputs[i].toTensor();
}

// Computes the operator now; its results are stored when its own host code has made the outputs.
bool compute_now(OpFrame& frame) {
  if (!frame.pending) return false;
  if (!prepare(*frame.info, *frame.pending)) {
    frame.pending.reset();
    return false;
  }
  std::vector<c10::IValue> results = frame.pending->arguments;
  if (!compute(*frame.info, results)) {
    frame.pending.reset();
    return false;
  }
  frame.pending->results = std::move(results);
  frame.pending->has_results = true;
  return true;
}

int64_t size_of_result(const OpFrame& frame, size_t i, int64_t dim) {
  const at::Tensor& t = frame.pending->results.at(i).toTensor();
  return dim < 0 ? t.numel() : t.size(dim);
}

// nonzero counts in pieces of 2^30 elements where 32 bits do not index the whole tensor.
int64_t packed_count(int64_t count, int64_t elements) {
  if (elements < INT_MAX) return count;
  int64_t first = count * (int64_t{1} << 30) / elements;
  return ((count - first) << 32) | (first & 0xffffffff);
}

const OpFrame* ancestor(const ThreadState& thread, Special special) {
  for (size_t i = thread.frames.size(); i-- > 0;)
    if (thread.frames[i].info && thread.frames[i].info->special == special &&
        thread.frames[i].depth_added)
      return &thread.frames[i];
  return nullptr;
}

void before_nonzero(ThreadState& thread, OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  if (!self || self->numel() == 0) return;
  // Inside an operator whose result is known, its own count counts: what it selects by comes from
  // kernels of its own.
  int64_t count = -1;
  for (const OpFrame& f : thread.frames) count = f.expected_count >= 0 ? f.expected_count : count;
  if (count < 0 && compute_now(frame)) {
    post(frame, packed_count(size_of_result(frame, 0, 0), self->numel()));
    return;
  }
  if (count >= 0) frame.pending.reset();
  if (count < 0) count = assume(frame, self->numel());
  post(frame, packed_count(count, self->numel()));
}

void before_unique(OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  if (!self || self->numel() == 0) return;
  bool consecutive = frame.info->special == Special::kUniqueConsecutive;
  auto inputs = inputs_of(*frame.function, *frame.info);
  int64_t dim = -1;
  if (consecutive && inputs.size() > 3 && inputs[3].isInt()) dim = inputs[3].toInt();
  if (dim < 0 && consecutive && inputs.size() > 3 && inputs[3].isInt()) dim += self->dim();
  // The CUDA code sorts whether asked to or not.
  if (!consecutive && frame.pending && frame.pending->inputs.size() > 1)
    frame.pending->inputs[1] = true;
  bool counts_true = self->scalar_type() == at::kBool && !consecutive;
  if (compute_now(frame)) {
    int64_t count = size_of_result(frame, 0, dim);
    if (counts_true)
      count = at::count_nonzero(frame.pending->arguments[0].toTensor()).item<int64_t>();
    post(frame, count);
  } else if (counts_true) {
    post(frame, assume(frame, self->numel() > 1 ? 2 : 1) > 1 ? self->numel() / 2 : 0);
  } else {
    post(frame, assume(frame, dim >= 0 ? self->size(dim) : self->numel()));
  }
}

void before_unique_dim(OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  auto inputs = inputs_of(*frame.function, *frame.info);
  if (!self || self->numel() == 0 || inputs.size() < 2 || !inputs[1].isInt()) return;
  int64_t dim = inputs[1].toInt();
  if (dim < 0) dim += self->dim();
  post(frame, compute_now(frame) ? size_of_result(frame, 0, dim) : assume(frame, self->size(dim)));
}

void before_coalesce(OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  if (!self || !self->is_sparse() || !self->is_cuda()) return;
  at::Tensor indices = self->_indices();
  if (!plain_cuda(indices) || indices.size(1) < 2) return;
  at::Tensor known = load(indices);
  if (known.defined())
    frame.indices =
        std::get<0>(at::unique_dim(known, 1));  // in the order in which coalesce sorts them
  post(frame, known.defined() ? frame.indices.size(1) : assume(frame, indices.size(1)));
}

void note_unknown_read(uint64_t address, size_t size) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kUnknownRead;
  event.address = address;
  event.size_bytes = size;
  fill_context(&event);
  bridge().emit(&event);
}

// Answers one host read: the content is there while the read runs, and unknown again after it.
void answer_read(OpFrame& frame, const at::Tensor& scalar, const at::Scalar& value) {
  at::Tensor one =
      at::empty({1}, at::TensorOptions().dtype(scalar.scalar_type()).device(at::kCPU)).fill_(value);
  const uint64_t address = address_of(scalar);
  const auto size = static_cast<size_t>(scalar.element_size());
  bridge().content_set(address, one.const_data_ptr(), size);
  frame.read_answered = true;
  note_unknown_read(address, size);
}

// Unknown real numbers that a program reads one by one are losses, norms and scores, which it
// compares with limits, with the best so far, or with the last one. So they are near 1, and fall: a
// zero would end many a loop as converged.
double unknown_number() {
  static std::atomic<uint64_t> reads{0};
  return 1.0 / (1.0 + 1e-3 * static_cast<double>(reads.fetch_add(1, std::memory_order_relaxed) %
                                                 1000000));
}

void before_scalar_read(ThreadState& thread, OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  if (!self || !plain_cuda(*self) || self->numel() != 1) return;
  uint64_t address = address_of(*self);
  char known[16];
  if (self->element_size() <= static_cast<int64_t>(sizeof known) &&
      bridge().content_get(address, known, self->element_size())) {
    if (assumptions().contains(address)) note_unknown_read(address, self->element_size());
    return;
  }
  const bool whole = c10::isIntegralType(self->scalar_type(), /*includeBool=*/true);
  if (whole && assumptions().contains(address)) {
    answer_read(frame, *self, 1);
  } else if (const OpFrame* repeat =
                 whole ? ancestor(thread, Special::kRepeatInterleave) : nullptr) {
    answer_read(frame, *self,
                self->scalar_type() == at::kBool ? int64_t{1} : repeat->expected_count);
  } else if (c10::isFloatingType(self->scalar_type())) {
    answer_read(frame, *self, unknown_number());
  }
  frame.read_address = address;
  frame.read_size = static_cast<uint64_t>(self->element_size());
}

// A comparison with an unknown real number decides a branch when the host reads its result. The
// number is taken as 1, or as -1 where it is compared with a negative one (a bound below zero is
// for numbers that are below zero, as a slope is); two unknown ones as different. The result is
// kept, so that what follows from it is consistent, and a read of it is counted. Of several numbers
// (as many as a batch has, not as a layer) only what any() of the results would be is kept.
constexpr int64_t kMostCompared = 4096;

bool comparison_holds(const std::string& name, double left, double right) {
  if (name == "aten::gt") return left > right;
  if (name == "aten::ge") return left >= right;
  if (name == "aten::lt") return left < right;
  if (name == "aten::le") return left <= right;
  return name == "aten::eq" ? left == right : left != right;
}

void assume_comparison(OpFrame& frame) {
  const auto& inputs = frame.arguments;
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (inputs.size() < 2 || outputs.size() != 1 || !inputs[0].isTensor() || !outputs[0].isTensor())
    return;
  const at::Tensor& self = inputs[0].toTensor();
  const at::Tensor& result = outputs[0].toTensor();
  if (!self.defined() || !result.defined() || !plain_cuda(result) || result.numel() == 0 ||
      result.numel() > kMostCompared || result.scalar_type() != at::kBool)
    return;
  auto numbers = [](const c10::IValue& value) -> at::Tensor {  // undefined: unknown
    if (value.isScalar() && !value.toScalar().isComplex())
      return at::empty({1}, at::TensorOptions().dtype(at::kDouble).device(at::kCPU))
          .fill_(value.toScalar());
    if (!value.isTensor()) return {};
    const at::Tensor& t = value.toTensor();
    if (!t.defined() || t.is_complex() || t.numel() > kMostCompared) return {};
    at::Tensor known = t.is_cuda() ? (plain_cuda(t) ? load(t) : at::Tensor()) : t;
    return known.defined() && known.device().is_cpu() ? known.to(at::kDouble).contiguous()
                                                      : at::Tensor();
  };
  const at::Tensor left = numbers(inputs[0]), right = numbers(inputs[1]);
  const bool same = inputs[1].isTensor() && self.is_same(inputs[1].toTensor());
  const std::string& name = frame.info->name;
  bool any = false;
  if (left.defined() && right.defined()) {
    if (left.numel() != 1 || right.numel() != 1) return;  // the kernel's business
    any = comparison_holds(name, left.data_ptr<double>()[0], right.data_ptr<double>()[0]);
  } else if (!left.defined() && !right.defined()) {
    any = same ? comparison_holds(name, 1, 1) : name == "aten::ne";
  } else {
    const at::Tensor& known = left.defined() ? left : right;
    for (int64_t i = 0; i < known.numel() && !any; i++) {
      const double value = known.data_ptr<double>()[i], unknown = value < 0 ? -1 : 1;
      any = left.defined() ? comparison_holds(name, value, unknown)
                           : comparison_holds(name, unknown, value);
    }
  }
  if (result.numel() > 1) return assumptions().add_any(address_of(result), any);
  store(
      result,
      at::empty(result.sizes(), at::TensorOptions().dtype(at::kBool).device(at::kCPU)).fill_(any));
  assumptions().add(address_of(result));
}

// any() of a comparison that was judged above.
void assume_any(OpFrame& frame) {
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (frame.read_address == 0 || outputs.size() != 1 || !outputs[0].isTensor()) return;
  const at::Tensor& result = outputs[0].toTensor();
  const auto any = assumptions().any_of(frame.read_address);
  if (!any || !plain_cuda(result) || result.numel() != 1 || result.scalar_type() != at::kBool)
    return;
  store(
      result,
      at::empty(result.sizes(), at::TensorOptions().dtype(at::kBool).device(at::kCPU)).fill_(*any));
  assumptions().add(address_of(result));
}

// Which experts, proposals or tokens unknown scores choose is not known; that each row chooses k
// different ones is. They are dealt out evenly.
void invent_indices(OpFrame& frame) {
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (outputs.size() != 2 || !outputs[0].isTensor() || !outputs[1].isTensor()) return;
  const at::Tensor& indices = outputs[1].toTensor();
  if (!plain_cuda(indices) || indices.scalar_type() != at::kLong || indices.dim() == 0 ||
      indices.numel() == 0 || indices.numel() > kMaxInventedIndices || frame.choice_size <= 0)
    return;
  int64_t n = frame.choice_size, dim = frame.choice_dim;
  std::vector<int64_t> shape = indices.sizes().vec();
  int64_t k = shape[static_cast<size_t>(dim)];
  if (k >= n) return;
  shape.erase(shape.begin() + dim);
  shape.push_back(k);
  at::Tensor dealt =
      at::remainder(at::arange(indices.numel(), at::TensorOptions().dtype(at::kLong)), n)
          .view(shape);
  store(indices, at::movedim(dealt, -1, dim).contiguous());
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAssumedSize;
  event.value = static_cast<uint64_t>(k);
  event.size_bytes = static_cast<uint64_t>(n);
  event.name = frame.info->name_id;
  fill_context(&event);
  bridge().emit(&event);
}

// One index of each row, by argmax or by chance: dealt out evenly from the middle on, since the
// first and the last often have a meaning of their own (padding, end of text).
void invent_choice(OpFrame& frame) {
  const auto& inputs = frame.arguments;
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (inputs.size() < 2 || outputs.size() != 1 || !inputs[0].isTensor() || !outputs[0].isTensor())
    return;
  const at::Tensor& self = inputs[0].toTensor();
  const at::Tensor& indices = outputs[0].toTensor();
  if (!self.defined() || self.dim() == 0 || !plain_cuda(indices) ||
      indices.scalar_type() != at::kLong || indices.numel() == 0 ||
      indices.numel() > kMaxInventedIndices)
    return;
  int64_t n = self.size(self.dim() - 1);
  if (frame.info->name == "aten::argmax") {
    const int64_t dim = inputs[1].isInt() ? inputs[1].toInt() : 0;
    n = inputs[1].isInt() ? self.size(dim < 0 ? dim + self.dim() : dim) : self.numel();
  }
  if (n <= 0) return;
  store(indices,
        at::remainder(
            at::arange(n / 2, n / 2 + indices.numel(), at::TensorOptions().dtype(at::kLong)), n)
            .view(indices.sizes()));
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAssumedSize;
  event.value = 1;
  event.size_bytes = static_cast<uint64_t>(n);
  event.name = frame.info->name_id;
  fill_context(&event);
  bridge().emit(&event);
}

void note_topk(OpFrame& frame) {
  const at::Tensor* self = tensor_argument(frame, 0);
  auto inputs = inputs_of(*frame.function, *frame.info);
  if (!self || self->dim() == 0 || inputs.size() < 3 || !inputs[2].isInt()) return;
  int64_t dim = inputs[2].toInt();
  if (dim < 0) dim += self->dim();
  frame.choice_size = self->size(dim);
  frame.choice_dim = dim;
}

}  // namespace

void after_coalesce(OpFrame& frame) {
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (outputs.size() != 1 || !outputs[0].isTensor() || !outputs[0].toTensor().defined() ||
      !outputs[0].toTensor().is_sparse())
    return;
  at::Tensor indices = outputs[0].toTensor()._indices();
  if (plain_cuda(indices) && indices.sizes() == frame.indices.sizes())
    store(indices, frame.indices);
}

void before_selection(ThreadState& thread, OpFrame& frame) {
  switch (frame.info->special) {
    case Special::kScalarRead: before_scalar_read(thread, frame); break;
    case Special::kNonzero: before_nonzero(thread, frame); break;
    case Special::kUnique:
    case Special::kUniqueConsecutive: before_unique(frame); break;
    case Special::kUniqueDim: before_unique_dim(frame); break;
    case Special::kCoalesce: before_coalesce(frame); break;
    case Special::kNms:
      if (compute_now(frame)) frame.expected_count = size_of_result(frame, 0, 0);
      break;
    case Special::kEqual:
      if (compute_now(frame)) frame.known_equal = frame.pending->results.at(0).toBool();
      break;
    case Special::kRepeatInterleave:
      if (!frame.pending)
        if (const at::Tensor* repeats = tensor_argument(frame, 0))
          frame.expected_count = assume(frame, repeats->numel());
      break;
    case Special::kTopk:
      if (!frame.pending) note_topk(frame);
      break;
    case Special::kChoice:
    case Special::kCompare: {
      auto inputs = inputs_of(*frame.function, *frame.info);
      const bool few = inputs.size() > 0 && inputs[0].isTensor() &&
                       inputs[0].toTensor().numel() <= kMostCompared;
      if (frame.info->special == Special::kChoice || few)
        frame.arguments.assign(inputs.begin(), inputs.end());
      break;
    }
    case Special::kAny:
      if (const at::Tensor* self = tensor_argument(frame, 0); self && plain_cuda(*self))
        frame.read_address = address_of(*self);
      break;
    case Special::kFoundInf:
      if (!frame.pending && inputs_of(*frame.function, *frame.info).size() > 0 &&
          inputs_of(*frame.function, *frame.info)[0].isTensorList())
        for (const at::Tensor& t : inputs_of(*frame.function, *frame.info)[0].toTensorList())
          if (t.defined() && plain_cuda(t)) forget(t);
      break;
    default: break;
  }
}

void after_selection(ThreadState& thread, OpFrame& frame) {
  auto outputs = outputs_of(*frame.function, *frame.info);
  if (frame.read_answered) bridge().content_forget(frame.read_address, frame.read_size);
  if (frame.info->special == Special::kAll && !frame.pending && outputs.size() == 1 &&
      outputs[0].isTensor()) {
    const at::Tensor& t = outputs[0].toTensor();
    const OpFrame* equal = ancestor(thread, Special::kEqual);
    if (t.defined() && plain_cuda(t) && t.numel() == 1) {
      if (equal && equal->known_equal)
        store(t, at::empty(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU))
                     .fill_(*equal->known_equal));
      else
        assumptions().add(address_of(t));
    }
  }
  if (frame.info->special == Special::kTopk && !frame.pending) invent_indices(frame);
  if (frame.info->special == Special::kChoice && !frame.pending) invent_choice(frame);
  if (frame.info->special == Special::kCompare && !frame.pending) assume_comparison(frame);
  if (frame.info->special == Special::kAny && !frame.pending) assume_any(frame);
  frame.arguments.clear();
}

void forget_assumption(uint64_t address) { assumptions().remove(address); }

}  // namespace tonnage::recorder
