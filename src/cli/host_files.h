// The files that an NVIDIA driver makes for the cards of a machine (/dev/nvidia0 and others).
// Copies of them are in the session's folder; libtonnage_files.so (src/host_files) shows them to
// the processes of the run.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "abi/session.h"
#include "base/result.h"

namespace tonnage::cli {

// Writes <folder>/host/dev/… (empty files: only their names count) and
// <folder>/host/proc/driver/nvidia/….
Result<void> write_host_files(const std::filesystem::path& folder,
                              const std::vector<abi::CardDesc>& cards);

// Adds the library to the environment of the child. Where its path cannot stand in LD_PRELOAD (a
// space, a colon) or it is not there, nothing is changed.
void preload_host_files(std::map<std::string, std::string>& environment,
                        const std::filesystem::path& library);

}  // namespace tonnage::cli
