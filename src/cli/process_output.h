// Runs a short command and keeps what it prints.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tonnage::cli {

struct ProcessOutput {
  int code = 0;      // 127: not found; 128 + signal
  std::string text;  // standard output, at most kMaxOutputBytes; standard error is thrown away
};

inline constexpr size_t kMaxOutputBytes = 1 << 20;
inline constexpr int kOutputTimeoutSeconds = 60;

// Looks the program up on PATH. Error: no process could be made, or it took longer than
// kOutputTimeoutSeconds and was killed.
Result<ProcessOutput> output_of(const std::vector<std::string>& command,
                                const std::vector<std::string>& environment);

}  // namespace tonnage::cli
