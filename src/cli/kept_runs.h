// The records of the last runs, kept so that `tonnage explain` without a file explains the last one.
//
// A file argument `last` or `last~2` names them. They lie in a private folder,
// $XDG_STATE_HOME/tonnage/runs or ~/.local/state/tonnage/runs, few in number and bytes: the oldest
// go first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

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
// if no runs are to be kept. Error: the record is too large, the folder is not ours alone or cannot
// be written. The run is not harmed by it.
Result<std::optional<std::filesystem::path>> keep_run(const std::filesystem::path& record,
                                                      const std::filesystem::path& folder,
                                                      const KeepLimits& limits);

// The last one kept, or that many before it; nullopt: none.
std::optional<std::filesystem::path> kept_run(const std::filesystem::path& folder, size_t back = 0);

// "last" is 0, "last~2" two runs before it; nullopt: neither.
std::optional<size_t> runs_back(std::string_view word);

// In the user's folder. Error kNotFound: there is none, and what to do.
Result<std::filesystem::path> find_kept_run(size_t back);

}  // namespace tonnage::cli
