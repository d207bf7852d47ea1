// The stack of this thread: Python frames if there are any, else return addresses of the C++
// program.
//
// Python frames are read in place, without the GIL and without making Python objects. This is safe:
// the frames of this thread cannot change while it is inside an operator. Python objects would also
// move the garbage collector's next run, and so change the program's memory. The offsets of the
// fields are known for Python 3.11 to 3.14, and are checked once against the interpreter's own
// functions. If the check fails, or on older versions, the public functions are used, with the GIL.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/bridge.h"

namespace tonnage::recorder {

// Sets the bridge that stacks are interned with. Once, before anything else here.
void stacks_start(const abi::Bridge* bridge);

// The Python stack of this thread, interned; 0 if it has no Python frames. `may_wait`: the caller
// holds no lock, so the GIL may be taken when a frame is seen for the first time; otherwise such a
// frame is left out unless the GIL is held already. `depth`, if not null: the number of frames.
uint32_t python_stack(bool may_wait, size_t* depth = nullptr);

// Return addresses of this thread, interned: file = the binary's path, function = the exported
// symbol or "+0x<offset in the file>", line = 0. The reader resolves the rest. Takes some
// microseconds; never waits for the GIL.
uint32_t native_stack();

}  // namespace tonnage::recorder
