#include "recorder/values/engine.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/assumed_results.h"
#include "recorder/values/content.h"
#include "recorder/values/data_dependent.h"
#include "recorder/values/formulas.h"
#include "recorder/values/host_reads.h"
#include "recorder/values/philox.h"
#include "recorder/values/plain_cpu.h"
#include "recorder/values/statistics.h"

namespace tonnage::recorder {
namespace {

using Follow = ValueSlot::Follow;
using Values = c10::ArrayRef<const c10::IValue>;

constexpr int kGiveUpAfter = 4;

// Random operators draw from a generator of their own, so that the program's random numbers stay
// what they were.
at::Generator& private_generator() {
  static auto* generator = new at::Generator(at::detail::createCPUGenerator(0x746f6e6e616765));
  return *generator;
}

// --- Looking at the inputs ---

enum class Input { kKnown, kUnknown, kOdd, kHost };

// A cheap look at one input; does not read content.
Input classify(const at::Tensor& t) {
  if (!t.defined()) return Input::kHost;
  if (!device::has(t)) {
    const auto keys = t.unsafeGetTensorImpl()->key_set();
    const bool plain_host = keys.has_backend(c10::BackendComponent::CPUBit) &&
                            keys.has(c10::DispatchKey::Dense) &&
                            !keys.has(c10::DispatchKey::Python);
    return plain_host ? Input::kHost : Input::kOdd;
  }
  if (!device::plain(t)) return Input::kOdd;
  if (t.numel() == 0) return Input::kKnown;
  if (static_cast<uint64_t>(t.numel()) * t.element_size() > recorder().settings.known_integer_bytes)
    return Input::kUnknown;
  return bridge().content_any(address_of(t), t.element_size()) ? Input::kKnown : Input::kUnknown;
}

// Only puts elements in their places: scatter_ with a reduction and index_put_ with accumulation
// also work with what was there.
bool only_places(const OpInfo& info, Values inputs) {
  if (!info.any_may_be_unknown) return false;
  constexpr size_t kAccumulate = 3;
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    if (inputs[i].isString() || (i == kAccumulate && inputs[i].isBool() && inputs[i].toBool()))
      return false;
  return true;
}

// What the inputs say of a call.
class Verdict {
 public:
  Verdict(const OpInfo& info, Values inputs)
      : info_(info), may_stand_in_(only_places(info, inputs)) {
    for (size_t i = 0; i < inputs.size() && i < info.arguments() && !odd; i++) {
      if (inputs[i].isDevice()) {
        concerns_device |= device::is(inputs[i].toDevice());
        continue;
      }
      for_each_tensor(info.kinds[i], inputs[i],
                      [&](const at::Tensor& t, int element) { look(t, i, element); });
    }
    if (partial && !some_known_) candidate = false;
  }

  bool concerns_device = false;
  bool odd = false;       // a tensor that is not plain: the call is left alone
  bool candidate = true;  // may be computed
  bool partial = false;   // a candidate some of whose arguments are unknown

 private:
  void look(const at::Tensor& t, size_t argument, int element) {
    if (!t.defined() || odd) return;
    if (!candidate && concerns_device) {
      // Already dismissed. Only unusual tensors matter now; an unusual list begins with one.
      if (element <= 0 && device::has(t) && !device::plain(t)) odd = true;
      return;
    }
    const bool written = info_.writes[argument] != 0;
    switch (classify(t)) {
      case Input::kOdd: odd = true; break;
      case Input::kHost: candidate &= !written; break;
      case Input::kUnknown: look_at_unknown(t, argument); break;
      case Input::kKnown:
        concerns_device = some_known_ = true;
        if (written && !small_enough(info_, t)) candidate = false;
        break;
    }
  }

  void look_at_unknown(const at::Tensor& t, size_t argument) {
    concerns_device = true;
    const bool write_only = info_.write_only[argument] != 0;
    if (may_stand_in_ && info_.may_be_unknown[argument] && small_enough(info_, t))
      partial = true;
    else if (!write_only)
      candidate = false;
    if (write_only && !small_enough(info_, t)) candidate = false;
  }

  const OpInfo& info_;
  const bool may_stand_in_;
  bool some_known_ = false;
};

void forget_argument(ArgumentKind kind, const c10::IValue& value) {
  for_each_tensor(kind, value, [](const at::Tensor& t, int) {
    if (t.defined() && device::has(t) && device::plain(t)) forget(t);
  });
}

void forget_written(const OpInfo& info, Values inputs) {
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    if (info.writes[i]) forget_argument(info.kinds[i], inputs[i]);
  for (int hidden : info.hidden_writes) {
    const auto i = static_cast<size_t>(hidden);
    if (i < inputs.size()) forget_argument(info.kinds[i], inputs[i]);
  }
}

// Calls f(tensor, result, element in a list or -1) for results on the device that are no arguments.
template <class F>
void for_each_result(const OpInfo& info, Values outputs, F f) {
  for (size_t i = 0; i < outputs.size(); i++) {
    if (info.result_is_argument[i]) continue;
    for_each_tensor(info.result_kinds[i], outputs[i], [&](const at::Tensor& t, int element) {
      if (t.defined() && device::has(t)) f(t, i, element);
    });
  }
}

// Those that are arguments, too: while it ran the driver may have copied known data into them, as
// addmm with out= does before its kernel writes there.
void forget_results(const OpInfo& info, Values outputs) {
  for_each_result(info, outputs, [](const at::Tensor& t, size_t, int) {
    if (device::plain(t)) forget(t);
  });
  if (info.rule == OpRule::kFoundInf) return;
  for (size_t i = 0; i < outputs.size(); i++)
    if (info.result_is_argument[i]) forget_argument(info.result_kinds[i], outputs[i]);
}

// --- Loading ---

// In place of an unknown argument; undefined where nothing can be.
at::Tensor stand_in(const OpInfo& info, PendingCompute& pending, size_t argument,
                    const at::Tensor& device) {
  if (!pending.may_stand_in || !info.may_be_unknown[argument] || !small_enough(info, device))
    return {};
  pending.partial = true;
  return load_or(device, pending.stand_in);
}

// Keeps the call's inputs; loads what the operator changes.
bool keep_inputs(const OpInfo& info, Values inputs, PendingCompute& out) {
  out.inputs.assign(inputs.begin(), inputs.end());
  bool complete = true;
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++) {
    if (!info.writes[i]) continue;
    for_each_tensor(info.kinds[i], inputs[i], [&](const at::Tensor& t, int element) {
      if (!t.defined() || !device::has(t) || !complete) return;
      at::Tensor copy = info.write_only[i] ? cpu_like(t) : load(t);
      if (!copy.defined()) copy = stand_in(info, out, i, t);
      if (!copy.defined()) complete = false;
      out.written.push_back({i, element, t, copy});
    });
  }
  return complete;
}

// Makes the CPU operator's arguments of a call's.
class Preparation {
 public:
  Preparation(const OpInfo& info, PendingCompute& pending) : info_(info), pending_(pending) {}

  // False if some content turns out to be unknown.
  bool run() {
    std::vector<c10::IValue> arguments;
    arguments.reserve(pending_.inputs.size());
    for (size_t i = 0; i < pending_.inputs.size(); i++) {
      arguments.push_back(argument(i, pending_.inputs[i]));
      if (!complete_) return false;
    }
    pending_.arguments = std::move(arguments);
    return true;
  }

 private:
  c10::IValue argument(size_t i, const c10::IValue& value) {
    if (value.isTensor()) return copy(i, value.toTensor(), -1);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      int n = 0;
      for (const at::Tensor& t : value.toTensorList()) list.push_back(copy(i, t, n++));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      int n = 0;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
        list.push_back(t && t->defined() ? std::optional<at::Tensor>(copy(i, *t, n))
                                         : std::nullopt);
        n++;
      }
      return list;
    }
    if (value.isDevice() && device::is(value.toDevice())) return c10::Device(c10::kCPU);
    if (static_cast<int>(i) == info_.generator_argument) return private_generator();
    return value;
  }

  at::Tensor copy(size_t i, const at::Tensor& t, int element) {
    if (!t.defined() || !device::has(t)) return t;
    for (const auto& w : pending_.written)
      if (w.argument == i && w.element == element) return w.copy;
    at::Tensor made = complete_ ? load(t) : at::Tensor();
    if (!made.defined() && complete_) made = stand_in(info_, pending_, i, t);
    if (!made.defined()) complete_ = false;
    return made;
  }

  const OpInfo& info_;
  PendingCompute& pending_;
  bool complete_ = true;
};

// Loads what is not loaded yet; false if some content turns out to be unknown.
bool prepare(const OpInfo& info, PendingCompute& pending) {
  return !pending.arguments.empty() || Preparation(info, pending).run();
}

// --- Computing ---

// Runs the CPU operator; false if it failed (counted, and given up after a few times).
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

// What follows from assumed numbers is assumed.
bool any_input_assumed(const OpInfo& info, const PendingCompute& pending) {
  bool assumed = false;
  for (size_t i = 0; i < pending.inputs.size() && i < info.arguments() && !assumed; i++)
    for_each_tensor(info.kinds[i], pending.inputs[i], [&](const at::Tensor& t, int) {
      if (t.defined() && t.numel() > 0 && device::has(t) && device::plain(t))
        assumed |= is_assumed(address_of(t));
    });
  return assumed;
}

void store_result(const at::Tensor& device, const at::Tensor& value, bool assumed) {
  if (assumed)
    assume(device, value);
  else
    store(device, value);
}

// The tensor that result i has at `element` (-1: it is not a list); undefined if there is none.
at::Tensor result_at(const std::vector<c10::IValue>& results, size_t i, int element) {
  if (element < 0) return results[i].isTensor() ? results[i].toTensor() : at::Tensor();
  if (!results[i].isTensorList()) return {};
  const auto list = results[i].toTensorList();
  return static_cast<size_t>(element) < list.size() ? list.get(static_cast<size_t>(element))
                                                    : at::Tensor();
}

// False if one of the two fails, or the results are not as many as the operator's own.
bool compute_both(const OpInfo& info, const PendingCompute& one, const PendingCompute& other,
                  std::vector<c10::IValue>& results, std::vector<c10::IValue>& others,
                  size_t outputs) {
  results = one.arguments;
  others = other.arguments;
  return compute(info, results) && compute(info, others) && results.size() == others.size() &&
         (results.size() == outputs || outputs == 0);
}

// Elements that have the same result for any value of the unknown ones are known.
void finish_partial(const OpInfo& info, PendingCompute& pending, Values outputs) {
  PendingCompute other;
  other.may_stand_in = true;
  other.stand_in = 1;
  std::vector<c10::IValue> results, others;
  const Values inputs(pending.inputs.data(), pending.inputs.size());
  const bool done = keep_inputs(info, inputs, other) && prepare(info, pending) &&
                    prepare(info, other) &&
                    compute_both(info, pending, other, results, others, outputs.size());
  const bool assumed = done && any_input_assumed(info, pending);
  const auto store_both = [&](const at::Tensor& t, const at::Tensor& one, const at::Tensor& two) {
    if (!done || !small_enough(info, t)) return forget(t);
    store_agreeing(t, one, two);
    if (assumed) mark_assumed(address_of(t), span_bytes(t));
  };
  for (size_t i = 0; i < pending.written.size(); i++)
    store_both(pending.written[i].device, pending.written[i].copy,
               done ? other.written[i].copy : at::Tensor());
  for_each_result(info, outputs, [&](const at::Tensor& t, size_t i, int element) {
    if (!device::plain(t)) return;
    store_both(t, done ? result_at(results, i, element) : at::Tensor(),
               done ? result_at(others, i, element) : at::Tensor());
  });
}

// Whether the results are on the device and small enough to be computed.
struct Results {
  bool wanted = false, fit = true, need_budget = false;

  Results(const OpInfo& info, const PendingCompute& pending, Values outputs) {
    wanted = !pending.written.empty() || pending.has_results;
    for (const auto& w : pending.written) need_budget |= needs_budget(info, w.device);
    for_each_result(info, outputs, [&](const at::Tensor& t, size_t, int) {
      wanted = true;
      if (!device::plain(t) || !small_enough(info, t))
        fit = false;
      else
        need_budget |= needs_budget(info, t);
    });
  }
};

bool affordable(ThreadState& thread, const OpInfo& info, const PendingCompute& pending,
                Values outputs) {
  const Values inputs(pending.inputs.data(), pending.inputs.size());
  const uint64_t cost = estimate_cost_ns(info, inputs, outputs);
  const uint64_t kind = (uint64_t{info.name_id} << 40) ^ cost;
  return thread.budget.admits(thread.next_serial, kind, cost);
}

bool worth_it(const Results& wanted, ThreadState& thread, const OpInfo& info,
              const PendingCompute& pending, Values outputs) {
  return wanted.wanted && wanted.fit &&
         (!wanted.need_budget || affordable(thread, info, pending, outputs));
}

// False if something in it was unknown after all, or it is not worth it.
bool finish_compute(ThreadState& thread, const OpInfo& info, PendingCompute& pending,
                    Values outputs) {
  const Results wanted(info, pending, outputs);
  bool done = pending.has_results;
  std::vector<c10::IValue> results = pending.results;
  if (!done && worth_it(wanted, thread, info, pending, outputs) && prepare(info, pending)) {
    if (pending.partial) {
      finish_partial(info, pending, outputs);
      return true;
    }
    results = pending.arguments;
    done = draw(info, pending.random, results) || compute(info, results);
  }
  done &= results.size() == outputs.size() || outputs.empty();
  const bool assumed = done && any_input_assumed(info, pending);
  for (const auto& w : pending.written)
    store_result(w.device, done ? w.copy : at::Tensor(), assumed);
  for_each_result(info, outputs, [&](const at::Tensor& t, size_t i, int element) {
    if (!device::plain(t)) return;
    store_result(t, done && wanted.fit ? result_at(results, i, element) : at::Tensor(), assumed);
  });
  return done;
}

// --- A call ---

void account_for_launches(Frame& frame) {
  bridge().operator_depth_add(1);
  frame.launches_accounted = true;
}

// An outer call of the same operator passes its work to this one (autocast, dispatch modes).
void mark_delegating(ThreadState& thread, const Frame& frame) {
  for (size_t i = thread.frames.size() - 1;
       i-- > 0 && thread.frames[i].kind == Frame::Kind::kOperator;)
    if (thread.frames[i].name == frame.name && thread.frames[i].values.follow != Follow::kNot)
      thread.frames[i].values.delegated = true;
}

bool can_compute(const OpInfo& info) {
  return info.failures.load(std::memory_order_relaxed) < kGiveUpAfter &&
         (!info.random || info.generator_argument >= 0) && info.hidden_writes.empty() &&
         info.rule != OpRule::kScalarRead;
}

device::RandomState random_state_of(const OpInfo& info, Values inputs) {
  if (!info.random || info.generator_argument < 0 || inputs.empty() || !inputs[0].isTensor() ||
      !device::has(inputs[0].toTensor()))
    return {};
  const auto at = static_cast<size_t>(info.generator_argument);
  if (at >= inputs.size()) return {};
  return device::random_state(inputs[0].toTensor().device(), inputs[at].isGenerator()
                                                                 ? inputs[at].toGenerator()
                                                                 : at::Generator());
}

void begin_compute(ThreadState& thread, Frame& frame, Values inputs, bool partial) {
  const OpInfo& info = *frame.info;
  auto pending = std::make_unique<PendingCompute>();
  std::optional<PlainCpuScope> scope;
  if (info.any_writes) scope.emplace(thread);  // else nothing is loaded yet
  pending->may_stand_in = only_places(info, inputs);
  pending->partial = partial;
  pending->random = random_state_of(info, inputs);
  if (!keep_inputs(info, inputs, *pending)) return;
  frame.values.pending = std::move(pending);
  frame.values.follow = Follow::kComputing;
}

void begin_known_values(ThreadState& thread, Frame& frame, Values inputs, const Verdict& verdict) {
  const OpInfo& info = *frame.info;
  ValueSlot& slot = frame.values;
  slot.formula = formula_of(info, inputs);
  if (slot.formula) {
    slot.follow = Follow::kFormula;
    return;
  }
  if (verdict.candidate && can_compute(info)) begin_compute(thread, frame, inputs, verdict.partial);
  if (info.rule == OpRule::kNone) return;
  PlainCpuScope scope(thread);
  if (info.rule == OpRule::kScalarRead) begin_scalar_read(thread, frame, inputs);
  begin_data_dependent(thread, frame, inputs);
  begin_assuming(frame, inputs);
}

}  // namespace

bool compute_now(Frame& frame) {
  ValueSlot& slot = frame.values;
  if (!slot.pending) return false;
  PendingCompute& pending = *slot.pending;
  if (prepare(*frame.info, pending)) {
    std::vector<c10::IValue> results = pending.arguments;
    if (compute(*frame.info, results)) {
      pending.results = std::move(results);
      return pending.has_results = true;
    }
  }
  drop_pending(frame);
  return false;
}

void drop_pending(Frame& frame) {
  frame.values.pending.reset();
  frame.values.follow = Follow::kForgetting;
}

void begin_values(ThreadState& thread, Frame& frame) {
  const OpInfo& info = *frame.info;
  const Values inputs = inputs_of(*frame.function, info);
  ValueSlot& slot = frame.values;
  const bool known_values = recorder().settings.known_values;
  if (info.rule == OpRule::kStatistic && known_values)
    slot.statistic = begin_statistic(info, inputs);
  if (!info.followed()) return;
  if (info.rule == OpRule::kCopy && is_drivers_copy(inputs))
    return begin_drivers_copy(thread, slot, inputs);
  const Verdict verdict(info, inputs);
  if (verdict.odd || !verdict.concerns_device) {
    if (info.rule == OpRule::kCoalesce && known_values) {  // sparse: its indices are followed
      account_for_launches(frame);
      PlainCpuScope scope(thread);
      begin_coalesce(frame, inputs);
    }
    return;
  }
  account_for_launches(frame);
  slot.follow = Follow::kForgetting;
  if (known_values) begin_known_values(thread, frame, inputs, verdict);
  if (slot.follow == Follow::kForgetting && (info.any_writes || !info.hidden_writes.empty()) &&
      info.rule != OpRule::kFoundInf)
    forget_written(info, inputs);
  mark_delegating(thread, frame);
}

void end_values(ThreadState& thread, Frame& frame) {
  const OpInfo& info = *frame.info;
  ValueSlot& slot = frame.values;
  const Values outputs = outputs_of(*frame.function, info);
  if (slot.note_as<CoalescedIndices>()) {
    PlainCpuScope scope(thread);
    return end_coalesce(frame, outputs);
  }
  if (slot.follow == Follow::kNot) {
    if (slot.statistic && !info.followed()) end_statistic(info, *slot.statistic, outputs);
    return;
  }
  if (slot.delegated) return;  // the call inside it was followed
  if (slot.follow == Follow::kFormula) {
    if (outputs.empty()) return forget(slot.formula->target);  // it failed
    return store_formula(thread, *slot.formula);
  }
  bool known = false;
  if (slot.pending) {
    PlainCpuScope scope(thread);
    if (slot.pending->partial)
      finish_partial(info, *slot.pending, outputs), known = true;
    else
      known = finish_compute(thread, info, *slot.pending, outputs);
  } else {
    forget_results(info, outputs);
  }
  if (known || !recorder().settings.known_values) return;
  if (slot.statistic) end_statistic(info, *slot.statistic, outputs);
  if (info.rule == OpRule::kNone) return;
  PlainCpuScope scope(thread);
  end_assuming(thread, frame, outputs);
}

void drop_values(Frame& frame) {
  if (frame.values.count_posted) bridge().clear_posted_read();
  if (frame.values.upload_policy) bridge().set_upload_policy(0);
  if (const auto* read = frame.values.note_as<AnsweredRead>())
    bridge().content_forget(read->address, read->size);
}

}  // namespace tonnage::recorder
