// C++ frames of snapshots: _record_memory_history() takes them by default, between and below the
// Python ones.
//
// Dozens of internal frames of PyTorch, Python and the C library would stand where the analyses
// look for the user's line. The C++ frames give the operator ("at::_ops::gelu::call": aten::gelu).
// After that, stacks with Python frames keep only the Python frames. Stacks without Python frames
// (threads of the backward pass, C++ programs) keep all.
#pragma once

#include <string_view>

#include "record/record.h"

namespace tonnage::sources {

// A C or C++ source file or library by its name; also "" and "??".
bool is_native_file(std::string_view file);

// "aten::gelu" from "at::_ops::gelu::call(at::Tensor const&, …)"; "" if the function is none.
std::string operator_of(std::string_view function);

// Sets Event::op where it is missing, shortens stacks, makes equal ones one. Cost: one pass over
// stacks and events; nothing where no stack has C++ frames.
void digest_native_frames(record::Record& record);

}  // namespace tonnage::sources
