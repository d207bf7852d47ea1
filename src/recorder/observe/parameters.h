// Parameters: their addresses, and the modules that own them. An operator that uses a parameter
// shows where the program is: in which module, whether a model has run, whether parameters are
// updated.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <string_view>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct ThreadState;

// An operator that no other has called begins.
void look_at_parameters(ThreadState& thread, const OpInfo& info,
                        const at::RecordFunction& function);

// The parameter at this address has this name ("layer1.0.conv1.weight"), and so its module.
void name_parameter(uint64_t address, std::string_view name);

// Under the allocator's lock: the block is gone.
void forget_parameter(uint64_t address);

}  // namespace tonnage::recorder
