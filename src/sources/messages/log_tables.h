// Tables in logs: nvidia-smi's, and what torch.cuda.memory_summary() prints.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sources/messages/log_oom.h"

namespace tonnage::sources {

// One GPU of an nvidia-smi table.
struct LogCard {
  uint64_t index = 0;
  LogSize used, total;
  struct Process {
    uint64_t pid = 0;
    std::string name;
    std::optional<LogSize> used;
  };
  std::vector<Process> processes;
  struct Slice {  // a MIG device: a part of the GPU that a process sees as a whole one
    uint64_t instance = 0;
    LogSize used, total;
  };
  std::vector<Slice> slices;
  uint64_t line_number = 0;
};

// Reads nvidia-smi's table line by line; a later table replaces what an earlier one said of a GPU.
class SmiTable {
 public:
  void line(std::string_view text, uint64_t number);
  std::vector<LogCard> take() { return std::move(cards_); }

 private:
  LogCard* card(uint64_t index);
  std::vector<LogCard> cards_;
  void slice_row(std::string_view text);
  std::optional<uint64_t> gpu_;  // of the row that was begun
  bool in_slices_ = false;       // within the table of MIG devices
};

// From the line that has "CUDA OOMs:" on. False: no such table.
bool parse_memory_summary(std::string_view text, LogOom& oom);

}  // namespace tonnage::sources
