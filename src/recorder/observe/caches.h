// Key-value caches of generation: memory to which keys and values of new tokens are appended,
// without gradients.
#pragma once

#include <ATen/record_function.h>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct ThreadState;

// An operator that can append (OpInfo::appends) begins. If it appends to a cache, the cache is
// labelled: at once if it is written in place, at the end of the call if a new tensor is made.
void look_for_cache(ThreadState& thread, const OpInfo& info, const at::RecordFunction& function);
void label_new_cache(const OpInfo& info, const at::RecordFunction& function);

}  // namespace tonnage::recorder
