// How the command of `tonnage run` ended, for the record's last chunk: its exit code or signal, and
// the errors that ended its Python processes (python/tonnage/ending.py).
#pragma once

#include <filesystem>
#include <string>

#include "cli/child.h"

namespace tonnage::cli {

// The chunk's JSON. session_folder: where the processes left their errors.
std::string command_end_json(const ChildExit& exit, const std::filesystem::path& session_folder);

}  // namespace tonnage::cli
