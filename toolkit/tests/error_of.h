// What the toolkit's exceptions say; for tests, which are compiled together.
#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace tonnage_test {

// The exception's message, or "no error".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace tonnage_test
