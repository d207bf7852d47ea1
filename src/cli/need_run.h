// After a run that ran out of memory: runs the same command once more, by itself, on cards without
// limit, until its peak repeats. The memory that it takes is what the command really needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/session.h"
#include "base/result.h"
#include "cli/install_paths.h"
#include "record/record.h"

namespace tonnage::cli {

inline constexpr uint64_t kLongestFirstRunNs =
    60'000'000'000;  // own time: a longer one is not repeated unasked
inline constexpr uint64_t kLongestFirstWallNs = 300'000'000'000;

// Standard input before the first run, and whether the command may have read from it.
class StandardInput {
 public:
  StandardInput();           // before the command starts
  bool may_be_read() const;  // after it has ended: something was there to read

 private:
  bool had_data_ = false;
};

struct NeedRunOptions {
  std::vector<abi::CardDesc> cards;  // the user's
  std::vector<std::string> command;
  uint64_t first_run_ns = 0;  // own time (WaitClock) of the run that ran out of memory
  uint64_t first_wall_ns = 0;
  uint64_t first_peak_bytes = 0;  // and the highest peak of a device in it
  double assume_selected = -1;
  bool known_values = true;
  bool asked_for = false;  // by --true-need: the files that the command writes are its own affair
};

// Why it cannot be run unasked; "" if it can.
std::string reason_not_to_run(const NeedRunOptions& options, const StandardInput& input);

// Nullopt: the run told nothing (it failed before it got as far as the first one, or was
// interrupted). Error: it could not be started.
Result<std::optional<record::TrueNeed>> run_for_need(const NeedRunOptions& options,
                                                     const InstallPaths& paths);

// As the record's last chunk has it.
std::string need_json(const record::TrueNeed& need);

}  // namespace tonnage::cli
