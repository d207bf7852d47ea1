// How the command of `tonnage run` ended, for the record's last chunk: its exit code or signal, and
// the errors that ended its Python processes (python/tonnage/ending.py).
#pragma once

#include <filesystem>
#include <string>

#include "cli/child.h"
#include "record/record.h"

namespace tonnage::cli {

// The chunk's JSON. session_folder: where the processes left their errors. limit: a limit of the
// host's that ended the command from outside, if one did.
std::string command_end_json(const ChildExit& exit, const std::filesystem::path& session_folder,
                             const record::HostLimit& limit = {});

}  // namespace tonnage::cli
