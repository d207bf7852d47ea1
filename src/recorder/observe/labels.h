// Labels: what the block at an address is for. Categories come from the operators seen in C++; names
// of parameters, buffers and optimizer states from python/tonnage/labels.py, where it was injected.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "abi/event.h"

namespace tonnage::recorder {

struct ThreadState;

void label(uint64_t address, abi::Category category, uint32_t name);

// A parameter used by an operator: labels it when it is seen for the first time; the module that
// owns it (interned), 0 if unknown.
uint32_t module_of_parameter(ThreadState& thread, const at::Tensor& parameter);

// A tensor that requires a gradient was written where none is taken: an update by hand. If it was
// used before, it is a parameter.
void parameter_updated(const at::Tensor& parameter);

// The module `levels` levels further out ("a.b.c", 1: "a.b"), 0 if there is none.
uint32_t outer_module(uint32_t module, size_t levels);

// Under the allocator's lock: the block is gone, and with it what was known about it.
void address_freed(uint64_t address);

// "key=value": what holds for the process.
void fact(const std::string& text);

// A note or a warning for the report.
void message(const std::string& text, bool warning);

// Tells the injected Python part (if any) that the recorder runs; once, from an operator on a
// Python thread.
void attach_python();

}  // namespace tonnage::recorder
