// Where results and messages go: results to standard output, a file or (for `run`) standard error,
// messages to standard error.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tonnage::cli {

// "tonnage: …" on standard error.
void say(const std::string& text);
void say(const Error& error);

// As a shell reads it back: quoted where it must be.
std::string shell_word(const std::string& text);
// "tonnage explain FILE"; for the last run without it.
std::string explain_command(const std::string& file);

// 2 for what the user asked wrongly, else 1.
int exit_code_of(const Error& error);

// Writes a new file; an existing one is replaced only with `force`, and then in one step.
Result<void> write_file(const std::filesystem::path& path, const std::string& text, bool force);
// The same, piece by piece: produce calls its argument for each piece and stops when that returns
// false.
using WritePiece = std::function<bool(std::string_view)>;
Result<void> write_file(const std::filesystem::path& path,
                        const std::function<bool(const WritePiece&)>& produce, bool force);

}  // namespace tonnage::cli
