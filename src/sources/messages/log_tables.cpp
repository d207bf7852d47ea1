#include "sources/messages/log_tables.h"

#include <algorithm>

#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr size_t kMaxCards = 64, kMaxProcesses = 64, kMaxSlices = 16;

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> out;
  while (!text.empty() && out.size() < 64) {
    const size_t begin = text.find_first_not_of(separators);
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(separators), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::optional<uint64_t> whole_number(std::string_view text) {
  LogScan scan(text);
  const auto number = scan.number();
  return scan.ended() ? number : std::nullopt;
}

// "10240MiB / 11264MiB" anywhere between two bars.
bool memory_of(std::string_view text, LogSize& used, LogSize& total) {
  const size_t slash = text.find("MiB /");
  if (slash == std::string_view::npos) return false;
  size_t begin = slash;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  LogScan scan(text, begin);
  const auto first = scan.size();
  if (!first || !(scan.literal(" / ") || scan.literal(" /") || scan.literal("/"))) return false;
  scan.spaces();
  const auto second = scan.size();
  if (!second || second->bytes == 0) return false;
  used = *first;
  total = *second;
  return true;
}

}  // namespace

LogCard* SmiTable::card(uint64_t index) {
  const auto found = std::find_if(cards_.begin(), cards_.end(),
                                  [&](const LogCard& c) { return c.index == index; });
  return found == cards_.end() ? nullptr : &*found;
}

// "|  0    7   0   0  |   4700MiB /  4864MiB  | ...": GPU, GPU instance, compute instance, device.
// The row below it has the BAR1 memory and no numbers in front.
void SmiTable::slice_row(std::string_view text) {
  LogCard::Slice slice;
  if (!memory_of(text, slice.used, slice.total)) return;
  const std::vector<std::string_view> words = split(text.substr(0, text.find('|', 1)), " |\t");
  const auto gpu = words.empty() ? std::nullopt : whole_number(words.front());
  LogCard* owner = gpu ? card(*gpu) : nullptr;
  if (!owner || words.size() < 3 || owner->slices.size() >= kMaxSlices) return;
  slice.instance = whole_number(words[1]).value_or(0);
  owner->slices.push_back(std::move(slice));
}

void SmiTable::line(std::string_view text, uint64_t number) {
  const size_t bar = text.find('|');
  if (bar == std::string_view::npos) return;
  text.remove_prefix(bar);
  if (text.find("MIG devices:") != std::string_view::npos) in_slices_ = true;
  if (text.find("Processes:") != std::string_view::npos ||
      text.find("NVIDIA-SMI") != std::string_view::npos)
    in_slices_ = false;
  if (in_slices_) return slice_row(text);
  if (LogSize used, total; memory_of(text, used, total)) {
    const uint64_t index = gpu_.value_or(cards_.size());
    LogCard* known = card(index);
    if (!known) {
      if (cards_.size() >= kMaxCards) return;
      known = &cards_.emplace_back();
    }
    *known = {};
    known->index = index;
    known->used = used;
    known->total = total;
    known->line_number = number;
    gpu_.reset();
    return;
  }
  const std::vector<std::string_view> words = split(text, " |\t");
  const auto first = words.empty() ? std::nullopt : whole_number(words.front());
  if (!first) return;
  const auto type = std::find_if(words.begin(), words.end(), [](std::string_view word) {
    return word == "C" || word == "G" || word == "C+G" || word == "M+C";
  });
  // The first line of a GPU: "|   0  NVIDIA A100 ...  On | 00000000:01:00.0 Off |".
  if (type == words.end()) {
    if (text.find(':') != std::string_view::npos) gpu_ = first;
    return;
  }
  LogCard* owner = card(*first);
  if (!owner || type == words.begin() || owner->processes.size() >= kMaxProcesses) return;
  LogCard::Process process;
  process.pid = whole_number(*(type - 1)).value_or(0);
  for (auto word = type + 1; word != words.end(); ++word) {
    if (auto size = LogScan(*word).size())
      process.used = size;
    else if (process.name.empty())
      process.name = std::string(word->substr(0, 200));
  }
  owner->processes.push_back(std::move(process));
}

bool parse_memory_summary(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (!scan.find("CUDA OOMs:")) return false;
  scan.spaces();
  oom.ooms = scan.number();
  if (scan.find("cudaMalloc retries:")) {
    scan.spaces();
    oom.retries = scan.number();
  }
  if (!oom.ooms) return false;
  oom.framework = LogFramework::kPyTorch;
  oom.backend = "CUDA";
  oom.format = OomFormat::kMemorySummary;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> cells = split(text.substr(0, end), "|");
    text.remove_prefix(std::min(end + 1, text.size()));
    if (cells.size() < 3) continue;
    const auto cell = [&](size_t index) {
      LogScan value(cells[index]);
      value.spaces();
      return value.size();
    };
    const auto named = [&](std::string_view name) {
      return cells[0].find(name) != std::string_view::npos;
    };
    if (named("Allocated memory") && !oom.allocated) {
      oom.allocated = cell(1);
      oom.peak = cell(2);
    } else if (named("GPU reserved memory") && !oom.reserved) {
      oom.reserved = cell(1);
    } else if (named("Non-releasable memory") && !oom.other) {
      oom.other = cell(1);
    }
  }
  return true;
}

}  // namespace tonnage::sources
