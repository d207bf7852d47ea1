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
  std::optional<uint64_t> gpu_;  // of the row that was begun
};

// From the line that has "CUDA OOMs:" on. False: the table counts no out-of-memory error.
bool parse_memory_summary(std::string_view text, LogOom& oom);

}  // namespace tonnage::sources
