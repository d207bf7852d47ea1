// Where results and messages go: results to standard output, a file or (for `run`) standard error, messages to standard error.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace tonnage::cli {

// "tonnage: …" on standard error.
void say(const std::string& text);
void say(const Error& error);

// 2 for what the user asked wrongly, else 1.
int exit_code_of(const Error& error);

// Writes a new file; an existing one is replaced only with `force`, and then in one step.
Result<void> write_file(const std::filesystem::path& path, const std::string& text, bool force);

}  // namespace tonnage::cli
