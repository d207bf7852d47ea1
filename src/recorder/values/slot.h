// What values/ keeps for an operator call while it runs. Most calls have unknown data; then only
// two flags of the slot are used.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

namespace tonnage::recorder {

struct PendingCompute;     // engine.h
struct PendingFormula;     // formulas.h
struct PendingStatistic;   // statistics.h
struct PendingCollective;  // collectives.h

// What a rule (OpRule) needs at the end of the call, or in a nested call.
struct ExpectedCount {  // repeat_interleave, nms: elements that a selection inside takes
  int64_t count;
};
struct KnownEqual {  // equal: what its host code will read
  bool equal;
};
struct TopkChoice {
  int64_t size, dim;  // of the dimension that is chosen from
};
struct KeptArguments {  // PyTorch has none when the call ends
  std::vector<c10::IValue> values;
};
struct ReadAddress {  // any: of what
  uint64_t address;
};
struct CoalescedIndices {
  at::Tensor indices;
};
struct AnsweredRead {  // content that is there for this read only
  uint64_t address;
  size_t size;
};
using RuleNote = std::variant<ExpectedCount, KnownEqual, TopkChoice, KeptArguments, ReadAddress,
                              CoalescedIndices, AnsweredRead>;

struct ValueSlot {
  enum class Follow : uint8_t {
    kNot,  // no tensors of the card, or others than plain ones, or a copy that the driver sees
    kForgetting,  // the results become unknown
    kComputing,   // PyTorch's CPU operator works them out: `pending`
    kFormula,     // they follow from the arguments: `formula`
  };
  Follow follow = Follow::kNot;
  bool delegated = false;      // a call of the same operator inside does the work (autocast, modes)
  bool count_posted = false;   // the driver has an answer for a read that is to come
  bool upload_policy = false;  // the driver was told not to keep what this copies up
  std::unique_ptr<PendingCompute> pending;
  std::unique_ptr<PendingFormula> formula;
  std::unique_ptr<PendingStatistic> statistic;
  std::unique_ptr<PendingCollective> collective;
  std::unique_ptr<RuleNote> note;

  ValueSlot();
  ValueSlot(ValueSlot&&) noexcept;
  ~ValueSlot();

  template <class T>
  void set_note(T value) {
    note = std::make_unique<RuleNote>(std::move(value));
  }
  template <class T>
  T* note_as() const {
    return note ? std::get_if<T>(note.get()) : nullptr;
  }
};

}  // namespace tonnage::recorder
