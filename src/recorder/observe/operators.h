// Which operator a record function stands for, and which calls PyTorch reports.
#pragma once

#include <ATen/record_function.h>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct ThreadState;

// The call's arguments and results. A boxed call shows its whole stack, of which they are the last
// ones.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function, const OpInfo& info);
c10::ArrayRef<const c10::IValue> outputs_of(const at::RecordFunction& function, const OpInfo& info);

// Avoids the boxing of this call's results, which takes longer than everything else that is done
// for a view or a composite operator. Only from a start callback; outputs_of() is empty afterwards.
// Does nothing where another observer is there too.
void leave_out_outputs(const at::RecordFunction& function);
// Nobody but the recorder observes this call. Only from a start callback.
bool only_observer(const at::RecordFunction& function);

// From now on, operators that make a view of a tensor or only call other operators are not
// observed. They allocate and write nothing, and PyTorch takes longer to prepare a call of the
// recorder than most of them take. Once, when the recorder starts; does nothing with a PyTorch
// whose layout is not known.
void leave_out_plain_views();
// Undoes that: for another observer (a profiler), or if a gradient must be known at the moment when
// it is kept.
void observe_plain_views();
void observe_detach();

// Notices when operators are taken away; once, before find_operator.
void watch_operators();

// The operator that this record function stands for; null if it is not an operator. Thread-safe;
// cheap after the first time.
const OpInfo* find_operator(ThreadState& thread, const at::RecordFunction& function);

}  // namespace tonnage::recorder
