// Labels: what the block at an address is for. Categories come from the operators seen in C++; names
// of parameters, buffers and optimizer states from python/tonnage/labels.py, where it was injected.
#pragma once

#include <cstdint>
#include <string>

#include "abi/event.h"

namespace tonnage::recorder {

void label(uint64_t address, abi::Category category, uint32_t name);

// Under the allocator's lock: the block is gone, and with it what was known about it.
void address_freed(uint64_t address, uint64_t size_bytes);

// "key=value": what holds for the process.
void fact(const std::string& text);

// A note or a warning for the report.
void message(const std::string& text, bool warning);

// Tells the injected Python part (if any) that the recorder runs; once, from an operator on a
// Python thread.
void attach_python();
// Whether that part is there.
bool python_names();
// Asks it for the names of all parameters. Call it without a lock, on a thread that may take the
// GIL. It asks at most once per step, and a few times in all.
void ask_for_names();
bool names_asked_in_this_step();
// Asks it what this Python tensor is: it requires a gradient and is no module's parameter.
void ask_about_leaf(const void* python_object);

}  // namespace tonnage::recorder
