// The records of the last runs, kept so that `tonnage explain` without a file explains the last one.
//
// They lie in a private folder, $XDG_STATE_HOME/tonnage/runs or ~/.local/state/tonnage/runs, few in
// number and bytes: the oldest go first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/result.h"

namespace tonnage::cli {

struct KeepLimits {
  int runs = 10;
  uint64_t bytes = 512ull << 20;  // of all of them together; a larger record is not kept
};

// By TONNAGE_KEEP_RUNS: a number of runs. 0: none are kept.
KeepLimits keep_limits();

// Where kept runs lie, made or not; nullopt: neither XDG_STATE_HOME nor HOME names a folder.
std::optional<std::filesystem::path> kept_runs_folder();

// Copies a finished record there and removes what is beyond the limits. The path of the copy; none
// if nothing is to be kept, or the record alone is beyond the limits. Error: the folder is not ours
// alone or cannot be written.
Result<std::optional<std::filesystem::path>> keep_run(const std::filesystem::path& record,
                                                      const std::filesystem::path& folder,
                                                      const KeepLimits& limits);

// The last one kept; nullopt: none.
std::optional<std::filesystem::path> newest_run(const std::filesystem::path& folder);

void prune_runs(const std::filesystem::path& folder, const KeepLimits& limits);

}  // namespace tonnage::cli
