// PyTorch's own message in all its versions.
#include "sources/messages/log_scan.h"
#include "sources/messages/message_family.h"

namespace tonnage::sources {
namespace {

constexpr uint64_t kPiB = 1ull << 50;

// "[[S allowed; ]]Of the allocated memory ..." and so on: as much of it as the text holds.
void parse_pytorch_21(LogScan& scan, LogOom& oom) {
  oom.format = OomFormat::kPyTorchCut;
  if (const auto device = scan.number()) oom.device = device;
  if (!scan.literal(" has a total capacity of ") && !scan.literal(" has a total capacty of "))
    return;
  oom.capacity = scan.size();
  if (!oom.capacity) return;
  oom.format = OomFormat::kPyTorch21;
  if (scan.literal(" of which ")) {
    oom.free = scan.size();
    scan.literal(" is free");
  }
  scan.literal(".");
  scan.spaces();
  for (;;) {
    LogProcess process;
    if (scan.literal("Including non-PyTorch memory, this process has ")) {
      process.is_self = true;
    } else if (scan.literal("Process ")) {
      process.pid = scan.number();
      if (!scan.literal(" has ")) break;
    } else {
      break;
    }
    const auto in_use = scan.size();
    if (!in_use || !scan.literal(" memory in use.")) break;
    scan.spaces();
    process.in_use = *in_use;
    process.plausible = in_use->bytes < kPiB;
    if (oom.processes.size() < 1000) oom.processes.push_back(process);
  }
  const size_t before = scan.at();
  if (const auto allowed = scan.size(); allowed && scan.literal(" allowed;")) {
    oom.allowed = allowed;
    scan.spaces();
  } else {
    scan.seek(before);
  }
  if (!scan.literal("Of the allocated memory ")) return;
  oom.allocated = scan.size();
  if (!scan.literal(" is allocated by PyTorch,")) return;
  scan.spaces();
  if (scan.literal("with ")) {
    oom.private_pools = scan.size();
    scan.find("), ");
  }
  if (scan.literal("and ")) oom.unallocated = scan.size();
}

void parse_pytorch_10(LogScan& scan, LogOom& oom) {
  oom.format = OomFormat::kPyTorchCut;
  oom.device = scan.number();
  if (!scan.literal("; ")) return;
  oom.capacity = scan.size();
  if (!scan.literal(" total capacity; ")) return;
  oom.allocated = scan.size();
  if (!scan.literal(" already allocated; ")) return;
  oom.free = scan.size();
  if (scan.literal(" current active; ")) oom.free = scan.size();  // Ascend
  if (!scan.literal(" free; ")) return;
  auto last = scan.size();
  if (scan.literal(" allowed; ")) {
    oom.allowed = last;
    last = scan.size();
  }
  if (scan.literal(" cached)")) {
    oom.unallocated = last;
    oom.format = OomFormat::kPyTorch10;
  } else if (scan.literal(" reserved in total by PyTorch)")) {
    oom.reserved = last;
    oom.format = OomFormat::kPyTorch14;
  }
}

void parse_hint(std::string_view text, LogOom& oom) {
  const size_t at = text.find("try setting");
  if (at == std::string_view::npos) return;
  const std::string_view rest = text.substr(at, 200);
  if (rest.find("expandable_segments") != std::string_view::npos)
    oom.hint = "expandable_segments";
  else if (rest.find("max_split_size_mb") != std::string_view::npos)
    oom.hint = "max_split_size_mb";
}

// The name of a device that PyTorch runs on by an extension ("MUSA out of memory"); "" if the word
// is none.
std::string word_before(std::string_view text) {
  if (text.empty() || text.back() != ' ') return {};
  text.remove_suffix(1);
  size_t begin = text.size();
  while (begin > 0 && text[begin - 1] >= 'A' && text[begin - 1] <= 'Z') --begin;
  const std::string_view word = text.substr(begin);
  return word.size() >= 2 && word.size() <= 8 ? std::string(word) : std::string();
}

}  // namespace

bool parse_pytorch(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  while (scan.find("out of memory")) {
    const size_t behind = scan.at();
    const std::string_view before =
        text.substr(0, behind - std::min(behind, std::string_view("out of memory").size()));
    if (scan.literal(". Tried to allocate ")) {
      oom.framework = LogFramework::kPyTorch;
      for (const char* backend :
           {"CUDA", "HIP", "XPU", "NPU", "MLU", "MTIA", "PrivateUse1", "GPU"}) {
        const std::string word = std::string(backend) + " ";
        if (before.size() >= word.size() && before.substr(before.size() - word.size()) == word) {
          oom.backend = backend;
          break;
        }
      }
      if (oom.backend.empty()) oom.backend = word_before(before);
      if (scan.literal("more than 1EB memory")) {
        oom.format = OomFormat::kPyTorchTooLarge;
        return true;
      }
      oom.requested = scan.size();
      oom.format = OomFormat::kPyTorchCut;
      for (const char* word : {"GPU ", "NPU ", "XPU ", "MLU "}) {
        if (scan.literal(std::string(" (") + word)) {
          parse_pytorch_10(scan, oom);
          break;
        }
        if (scan.literal(std::string(". ") + word)) {
          parse_pytorch_21(scan, oom);
          break;
        }
      }
      parse_hint(scan.rest(), oom);
      return oom.requested.has_value();
    }
    if (scan.literal(" (MPS allocated: ")) {
      oom.framework = LogFramework::kPyTorch;
      oom.backend = "MPS";
      oom.format = OomFormat::kMps;
      oom.allocated = scan.size();
      if (scan.literal(", other allocations: ")) oom.other = scan.size();
      if (scan.literal(", max allowed: ")) oom.capacity = scan.size();
      if (scan.literal("). Tried to allocate ")) oom.requested = scan.size();
      return true;
    }
  }
  scan.seek(0);
  if (scan.find("OutOfMemoryError: Allocation on device") &&
      scan.rest().find_first_not_of(" \n") == std::string_view::npos) {
    oom.framework = LogFramework::kPyTorch;  // a program printed the first words only
    oom.backend = "CUDA";
    oom.format = OomFormat::kCudaMallocAsync;
    return true;
  }
  scan.seek(0);
  if (scan.find("Allocation on device ")) {
    oom.device = scan.number();
    if (scan.literal(" would exceed allowed memory. (out of memory)")) {
      oom.framework = LogFramework::kPyTorch;
      oom.backend = "CUDA";
      oom.format = OomFormat::kCudaMallocAsync;
      const auto field = [&scan](std::string_view name) -> std::optional<LogSize> {
        scan.spaces();
        if (!scan.literal(name)) return std::nullopt;
        scan.spaces();
        if (!scan.literal(":")) return std::nullopt;
        scan.spaces();
        return scan.size();
      };
      oom.allocated = field("Currently allocated");
      oom.requested = field("Requested");
      oom.capacity = field("Device limit");
      oom.free = field("Free (according to CUDA)");
      oom.allowed = field("PyTorch limit (set by user-supplied memory fraction)");
      return true;
    }
    oom.device.reset();
  }
  return false;
}

}  // namespace tonnage::sources
