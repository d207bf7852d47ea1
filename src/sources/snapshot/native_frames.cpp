#include "sources/snapshot/native_frames.h"

#include <algorithm>
#include <unordered_map>

namespace tonnage::sources {
namespace {

// Every operator asks for its memory by one of these: they say nothing.
bool only_makes_memory(std::string_view op) {
  for (const std::string_view name :
       {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
        "aten::resize_", "aten::new_empty_strided", "aten::empty_memory_format"}) {
    if (op == name) return true;
  }
  return false;
}

struct FramesHash {
  size_t operator()(const std::vector<abi::Frame>& frames) const {
    uint64_t hash = frames.size();
    for (const abi::Frame& frame : frames) {
      for (const uint64_t part :
           {uint64_t{frame.function}, uint64_t{frame.file}, uint64_t{frame.line}}) {
        hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
      }
    }
    return hash;
  }
};
struct FramesEqual {
  bool operator()(const std::vector<abi::Frame>& a, const std::vector<abi::Frame>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const abi::Frame& x, const abi::Frame& y) {
                        return x.function == y.function && x.file == y.file && x.line == y.line;
                      });
  }
};

class Digest {
 public:
  explicit Digest(record::Record& record)
      : record_(record),
        native_(record.strings.size(), kUnasked),
        ops_(record.strings.size(), kUnasked) {}

  void run() {
    bool any = false;
    for (const auto& stack : record_.stacks) {
      any = any || std::any_of(stack.begin(), stack.end(),
                               [&](const abi::Frame& frame) { return native(frame.file); });
      if (any) break;
    }
    if (!any) return;
    std::vector<uint32_t> op_of(record_.stacks.size(), abi::kNoId), now(record_.stacks.size(), 0);
    std::vector<std::vector<abi::Frame>> kept(1);
    std::unordered_map<std::vector<abi::Frame>, uint32_t, FramesHash, FramesEqual> known;
    for (size_t i = 1; i < record_.stacks.size(); ++i) {
      std::vector<abi::Frame>& stack = record_.stacks[i];
      op_of[i] = op(stack);
      if (std::any_of(stack.begin(), stack.end(),
                      [&](const abi::Frame& frame) { return !native(frame.file); }))
        std::erase_if(stack, [&](const abi::Frame& frame) { return native(frame.file); });
      const auto [at, made] =
          known.try_emplace(std::move(stack), static_cast<uint32_t>(kept.size()));
      if (made) kept.push_back(at->first);
      now[i] = at->second;
    }
    record_.stacks = std::move(kept);
    const auto renumber = [&](uint32_t& stack) {
      stack = stack < now.size() ? now[stack] : abi::kNoId;
    };
    for (abi::MemoryEvent& event : record_.events) {
      if (event.op == abi::kNoId && event.stack < op_of.size()) event.op = op_of[event.stack];
      renumber(event.stack);
    }
    for (record::SegmentState& segment : record_.final_segments) {
      renumber(segment.stack);
      for (record::BlockState& block : segment.blocks) renumber(block.stack);
    }
  }

 private:
  static constexpr uint32_t kUnasked = UINT32_MAX;

  bool native(uint32_t file) {
    if (file >= native_.size()) return true;
    if (native_[file] == kUnasked) native_[file] = is_native_file(record_.strings[file]);
    return native_[file] != 0;
  }
  // The operator as a string's number; innermost first.
  uint32_t op(const std::vector<abi::Frame>& stack) {
    uint32_t makes_memory = abi::kNoId;
    for (const abi::Frame& frame : stack) {
      if (frame.function >= ops_.size()) continue;
      if (ops_[frame.function] == kUnasked)
        ops_[frame.function] = intern(operator_of(record_.strings[frame.function]));
      const uint32_t found = ops_[frame.function];
      if (found == abi::kNoId) continue;
      if (!only_makes_memory(record_.strings[found])) return found;
      if (makes_memory == abi::kNoId) makes_memory = found;
    }
    return makes_memory;
  }
  uint32_t intern(const std::string& text) {
    if (text.empty()) return abi::kNoId;
    const auto [at, made] = added_.try_emplace(text, static_cast<uint32_t>(record_.strings.size()));
    if (made) record_.strings.push_back(text);
    return at->second;
  }

  record::Record& record_;
  std::vector<uint32_t> native_, ops_;  // by string
  std::unordered_map<std::string, uint32_t> added_;
};

}  // namespace

bool is_native_file(std::string_view file) {
  if (file.empty() || file == "??" || file.find(".so.") != std::string_view::npos) return true;
  // Object files and programs: the C runtime's start ("crt1.o"), the interpreter.
  const std::string_view name = file.substr(file.rfind('/') + 1);
  if (name == "python" || name.starts_with("python3") || name.starts_with("python2")) return true;
  for (const std::string_view end :
       {".cpp", ".cc", ".c", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".S", ".so", ".hip", ".inc",
        ".inl", ".tcc", ".o", ".a", ".hh", ".cppm"}) {
    if (file.ends_with(end)) return true;
  }
  return false;
}

std::string operator_of(std::string_view function) {
  constexpr std::string_view kPrefix = "at::_ops::";
  if (!function.starts_with(kPrefix)) return "";
  function.remove_prefix(kPrefix.size());
  function = function.substr(0, function.find("::"));
  // Overloads are part of the name: add_Tensor, mm_out.
  for (size_t i = 1; i + 1 < function.size(); ++i) {
    if (function[i] == '_' && function[i + 1] >= 'A' && function[i + 1] <= 'Z') {
      function = function.substr(0, i);
      break;
    }
  }
  if (function.ends_with("_out")) function.remove_suffix(4);
  return function.empty() ? "" : "aten::" + std::string(function);
}

void digest_native_frames(record::Record& record) { Digest(record).run(); }

}  // namespace tonnage::sources
