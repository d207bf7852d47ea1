// A command once more, by itself: it reads nothing, its output goes nowhere, and unless the user
// asked for the run it writes no files but temporary ones and caches (cli/sandbox.h). It goes on
// until its peak repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/session.h"
#include "base/result.h"
#include "cli/child.h"
#include "cli/install_paths.h"
#include "record/record.h"

namespace tonnage::cli {

struct QuietRunOptions {
  std::vector<abi::CardDesc> cards;
  std::vector<std::string> command;
  uint64_t first_run_ns = 0;      // how long the user's own run took, of its own time (WaitClock)
  uint64_t first_peak_bytes = 0;  // what it took on all cards: this run goes as far; 0: no matter
  double assume_selected = -1;
  bool known_values = true;
  bool asked_for = false;  // the files that it writes are its own affair
};

struct QuietRun {
  record::Record record;
  ChildExit exit;
  bool was_stopped = false;  // it had told enough, or took too long; else it ended by itself
};

// Nullopt: it was interrupted, or recorded nothing. Error: it could not be started.
Result<std::optional<QuietRun>> run_quietly(const QuietRunOptions& options,
                                            const InstallPaths& paths);

}  // namespace tonnage::cli
