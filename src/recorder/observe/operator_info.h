// What the recorder needs to know about an operator. It is found once, from the operator's schema
// and the dispatcher's tables.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "recorder/values/collective_kind.h"

namespace tonnage::recorder {

// Operators with a special rule in values/; all others follow their schema.
enum class OpRule : uint8_t {
  kNone,
  kCopy,        // copy_: what the driver sees as a copy is the driver's
  kScalarRead,  // _local_scalar_dense
  // The size of the result depends on data; their host code reads a count back.
  kNonzero,
  kUnique,  // _unique, _unique2: the count, or the number of true values of booleans
  kUniqueConsecutive,
  kUniqueDim,
  kCoalesce,
  kNms,
  kRepeatInterleave,
  kEqual,  // its host code reads `all` of a comparison that the dispatcher does not see
  // Something is assumed of the result where the inputs are unknown.
  kAll,
  kAny,
  kTopk,       // which indices are chosen
  kChoice,     // argmax, multinomial: one index a row
  kCompare,    // of one unknown number, or a few
  kStatistic,  // min, max, mean, quantile, sort, …: consistent with each other
  kFoundInf,   // unknown gradients count as finite
  // The result follows from the arguments.
  kFill,
  kRange,  // arange of whole numbers
};

// What an argument can hold, by its type in the schema. To ask the value itself for the element
// type of a list takes long.
enum class ArgumentKind : uint8_t { kOther, kTensor, kTensors, kOptionalTensors, kDevice };

// Up to which size known real numbers are followed through an operator.
enum class Reach : uint8_t {
  kSmall,      // Settings::known_float_elements
  kMasks,      // attention masks are made with it: 2^20 elements, and beyond if there is time
  kPositions,  // neighbour lists are made with it: further if there is time (values/budget.h)
};

struct OpInfo {
  explicit OpInfo(c10::OperatorHandle h) : handle(std::move(h)) {}
  c10::OperatorHandle handle;
  std::string name;                // without overload
  uint32_t name_id = 0;            // interned
  bool has_device_kernel = false;  // a leaf: its outputs are what its kernels write
  bool is_view = false;
  bool allocates_only = false;  // empty and the like: contents stay what they were
  bool only_views = false;      // makes another view of a tensor and no memory
  bool moves = false;           // to, _to_copy: may copy from the host
  bool quiet = false;           // of unknown data it makes unknown data: see quiet_calls.h
  bool host_only = false;       // with host tensors alone it has nothing to do with a device
  uint32_t inner_name_id = 0;   // quiet: the operator inside that allocates, or its own name
  bool keeps_gradient = false;  // how a gradient is accumulated
  bool makes_gradient = false;  // in new memory
  bool random = false;
  bool appends = false;        // cat, index_copy_: a key-value cache grows by it
  bool takes_tensors = false;  // else it makes tensors of nothing: randn, zeros
  bool makes_alike = false;    // zeros_like and the like
  bool multiplies = false;     // matrices, or picks by index: models without layers use these
  int weight_argument = -1;    // a layer: the argument "weight" of its schema
  int generator_argument = -1;
  Reach reach = Reach::kSmall;
  OpRule rule = OpRule::kNone;
  Collective collective = Collective::kNone;
  std::vector<ArgumentKind> kinds;         // by argument
  std::vector<uint8_t> writes;             // by argument: 1 if the operator writes it
  std::vector<uint8_t> write_only;         // by argument: 1 if what was in it does not matter
  std::vector<uint8_t> may_be_unknown;     // by argument: 1 if its elements are only moved, so that
                                           // the known elements of the result do not depend on it
  std::vector<ArgumentKind> result_kinds;  // by result
  std::vector<uint8_t> result_is_argument;  // by result: 1 if it is one of the written arguments
  std::vector<int> hidden_writes;  // written although the schema does not say so: running averages
  bool any_writes = false;
  bool any_may_be_unknown = false;
  mutable std::atomic<int> failures{0};  // of the CPU operator; after a few it is given up

  bool is(std::string_view other) const { return name == other; }
  size_t arguments() const { return writes.size(); }
  // Known content is followed through it.
  bool followed() const { return has_device_kernel && !is_view && !allocates_only; }
  // Its results are looked at when it ends.
  bool needs_results() const { return followed() || rule == OpRule::kStatistic; }
};

std::unique_ptr<OpInfo> describe_operator(c10::OperatorHandle handle);

// Calls f(tensor, index) for the tensors of an argument; the index is -1 where it is not a list.
// Undefined ones are passed too.
template <class F>
void for_each_tensor(ArgumentKind kind, const c10::IValue& value, F f) {
  if (kind == ArgumentKind::kTensor) {
    if (value.isTensor()) f(value.toTensor(), -1);
  } else if (kind == ArgumentKind::kTensors) {
    int i = 0;
    if (value.isList())
      for (const c10::IValue& element : value.toListRef()) f(element.toTensor(), i++);
  } else if (kind == ArgumentKind::kOptionalTensors) {
    int i = 0;
    if (value.isList())
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) f(element.toTensor(), i);
        i++;
      }
  }
}

}  // namespace tonnage::recorder
