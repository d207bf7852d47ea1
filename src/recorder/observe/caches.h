// Key-value caches of generation: memory to which keys and values of new tokens are appended,
// without gradients.
#pragma once

#include <ATen/record_function.h>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct ThreadState;

// An operator that can append (OpInfo::appends) begins. If it appends to a cache, the cache is
// labelled: where it is written in place now, where it is made anew when the call ends.
void look_for_cache(ThreadState& thread, const OpInfo& info, const at::RecordFunction& function);
void label_new_cache(const OpInfo& info, const at::RecordFunction& function);

}  // namespace tonnage::recorder
