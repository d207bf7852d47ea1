// What is worth knowing about an operator, worked out once from its schema and the dispatcher's
// tables.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recorder/values/collectives.h"

namespace tonnage::recorder {

struct ThreadState;

// Operators that get a treatment of their own; the rest follow their schema.
enum class Special : uint8_t {
  kNone,
  kCopy,        // copy_: copies that the driver sees as such are the driver's
  kScalarRead,  // _local_scalar_dense
  kNonzero,
  kUnique,  // _unique, _unique2: count, or number of true values for booleans
  kUniqueConsecutive,
  kUniqueDim,
  kCoalesce,
  kNms,
  kRepeatInterleave,
  kAll,
  kAny,       // of an unknown comparison: as that was judged
  kEqual,     // equal: its host code reads `all` of a comparison that the dispatcher does not see
  kTopk,      // indices of unknown values
  kChoice,    // argmax, multinomial: one index of unknown values
  kCompare,   // of one unknown number: taken as 1, or -1 beside a negative one
  kFill,      // fill_: a pattern, whatever the size
  kRange,     // arange of whole numbers
  kFoundInf,  // _amp_foreach_non_finite_check_and_unscale_: unknown gradients count as finite
};

// What an argument can hold, by its type in the schema; asking the value itself what a list is of
// takes long.
enum class ArgumentKind : uint8_t { kOther, kTensor, kTensors, kOptionalTensors, kDevice };

struct OpInfo {
  explicit OpInfo(c10::OperatorHandle h) : handle(std::move(h)) {}
  c10::OperatorHandle handle;
  std::string name;              // without overload
  uint32_t name_id = 0;          // interned
  bool has_cuda_kernel = false;  // a leaf: its outputs are what its kernels write
  bool is_view = false;
  bool allocates_only = false;  // empty and friends: contents stay what they were
  bool only_views = false;      // makes another view of a tensor and no memory
  bool moves = false;           // to, _to_copy: may copy from the host
  bool closable = false;  // only views and casts: makes no known values out of unknown ones, so its
                          // inside needs no look
  bool host_only = false;       // with tensors of the host alone it has nothing to do with a device
  uint32_t inner_name_id = 0;   // closable: the operator inside that allocates, or its own name
  bool keeps_gradient = false;  // how a gradient is accumulated
  bool makes_gradient = false;  // in new memory
  bool shapes_masks =
      false;  // what masks are made with: known real numbers are followed to a larger size
  bool random = false;
  int generator_argument = -1;
  Special special = Special::kNone;
  Collective collective = Collective::kNone;
  bool before_call = false,
       after_call = false;              // before_selection / after_selection have something to do
  std::vector<ArgumentKind> kinds;      // by argument
  std::vector<uint8_t> writes;          // by argument: 1 if the operator writes it
  std::vector<uint8_t> write_only;      // by argument: 1 if what was in it does not matter
  std::vector<uint8_t> may_be_unknown;  // by argument: 1 if it is only moved, so that known
                                        // elements of the result stay known
  std::vector<ArgumentKind> result_kinds;   // by result
  std::vector<uint8_t> result_is_argument;  // by result: 1 if it is one of the written arguments
  std::vector<int>
      hidden_writes;  // arguments written although the schema does not say so (running statistics)
  bool any_writes = false;
  bool any_may_be_unknown = false;
  mutable std::atomic<int> failures{
      0};  // of the CPU operator; after a few it is not tried any more

  size_t arguments() const { return writes.size(); }
  // Known content is followed through it.
  bool followed() const { return has_cuda_kernel && !is_view && !allocates_only; }
};

// The call's arguments and results. A boxed call shows its whole stack, of which they are the last
// ones.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function, const OpInfo& info);
c10::ArrayRef<const c10::IValue> outputs_of(const at::RecordFunction& function, const OpInfo& info);

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

// Spares this call the boxing of its results, which costs more than all else that is done for a
// view or a composite operator. Only from a start callback; outputs_of() is empty afterwards. Does
// nothing where another observer is there too.
void leave_out_outputs(const at::RecordFunction& function);
// Nobody but the recorder observes this call. Only from a start callback.
bool only_observer(const at::RecordFunction& function);

// Operators that make another view of a tensor, or only call others, are not observed: they allocate
// nothing, write nothing, and PyTorch's preparation of a call of the recorder takes longer than most
// of them. Once, when the recorder starts; does nothing with a PyTorch whose layout is not known.
void leave_out_plain_views();
// Takes that back: for another observer (a profiler), or where a gradient must be known when it is
// kept.
void observe_plain_views();
void observe_detach();

// Notices when operators are taken away; once, before find_operator.
void watch_operators();

// The operator that this record function stands for; null if it is not an operator. Thread-safe;
// cheap after the first time.
const OpInfo* find_operator(ThreadState& thread, const at::RecordFunction& function);

}  // namespace tonnage::recorder
