// Which library asked the driver for memory.
#pragma once

#include <string>

namespace tonnage::driver {

// By the native stack of the calling thread: "pytorch", "cublas", "nccl", "cupy" …; another
// library's own name; "program" for the executable itself and for an interpreter's calls through
// ctypes. Walks the stack: for rare events.
std::string asking_library();

// The same for one file on that stack; "": it passes on what others ask for (the CUDA runtime,
// libffi).
std::string library_name(const std::string& path);

}  // namespace tonnage::driver
