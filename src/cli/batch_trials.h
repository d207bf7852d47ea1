// Whether a smaller batch is really enough: the command runs with it, on the user's own card.
#pragma once

#include <cstdint>

#include "cli/install_paths.h"
#include "cli/quiet_run.h"
#include "record/record.h"

namespace tonnage::cli {

inline constexpr uint64_t kLongestTrialsNs = 60'000'000'000;  // all of them together

// `options`: of the user's command and cards. Runs the batch that was counted, and others next to
// what was measured then, for as long as kLongestTrialsNs allows, and writes into `need` what came
// out. Leaves it as it is where the command line names no batch, or the runs fail for other
// reasons.
void try_smaller_batches(const QuietRunOptions& options, const InstallPaths& paths,
                         record::TrueNeed& need);

}  // namespace tonnage::cli
