// The few functions of the Python interpreter in this process, found by name: no Python headers, so
// one recorder serves every Python version and pure C++ programs. All pointers are null where there
// is no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tonnage::recorder {

struct PythonApi {
  bool present = false;
  int minor = 0;        // 3.x
  std::string version;  // e.g. "3.11.2"

  int (*is_initialized)() = nullptr;
  int (*is_finalizing)() = nullptr;
  int (*gil_check)() = nullptr;
  int (*gil_ensure)() = nullptr;
  void (*gil_release)(int) = nullptr;
  void* (*this_thread_state)() = nullptr;                  // borrowed; works without the GIL
  void* (*frame_of_thread)(void* thread_state) = nullptr;  // new reference
  void* (*frame_back)(void* frame) = nullptr;              // new reference
  void* (*frame_code)(void* frame) = nullptr;              // new reference
  int (*frame_line)(void* frame) = nullptr;
  int (*frame_lasti)(void* frame) = nullptr;  // bytes; 3.11 and later
  int (*code_line)(void* code, int offset_bytes) = nullptr;
  void* (*get_attribute)(void* object, const char* name) = nullptr;  // new reference
  const char* (*utf8)(void* unicode, std::ptrdiff_t* size) = nullptr;
  void (*incref)(void*) = nullptr;
  void (*decref)(void*) = nullptr;
  void (*error_fetch)(void**, void**, void**) = nullptr;
  void (*error_restore)(void*, void*, void*) = nullptr;
  void (*error_clear)() = nullptr;
  int (*gc_disable)() = nullptr;  // 3.10 and later; returns the state before
  int (*gc_enable)() = nullptr;
  void* (*module_dict)() = nullptr;                          // borrowed
  void* (*dict_get)(void* dict, const char* key) = nullptr;  // borrowed
  void* (*call_method)(void* object, const char* name, const char* format,
                       ...) = nullptr;  // new reference

  bool running() const {
    return present && is_initialized() && !(is_finalizing && is_finalizing());
  }
};

// Looked up once, at the first call; thread-safe.
const PythonApi& python_api();

// Holds the GIL for a scope (takes it only where this thread does not have it) and keeps the
// pending exception and the garbage collector as they were. Never construct it under a lock that a
// thread holding the GIL may want.
class PythonScope {
 public:
  PythonScope();
  ~PythonScope();
  PythonScope(const PythonScope&) = delete;
  PythonScope& operator=(const PythonScope&) = delete;
  bool entered() const { return entered_; }

 private:
  bool entered_ = false;
  int gil_state_ = 0;
  int gc_was_on_ = 0;
  void* error_[3] = {nullptr, nullptr, nullptr};
};

// True if this thread holds the GIL now.
bool holds_gil();

}  // namespace tonnage::recorder
