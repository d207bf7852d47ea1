#include "analysis/diagnosis/mechanisms.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

namespace tonnage::analysis {
namespace {

// A part of a file's path and a part of a function's name, both in small letters; "" is any.
struct Pattern {
  const char* file;
  const char* function;
  Mechanism mechanism;
};

// The more telling ones first.
constexpr Pattern kPatterns[] = {
    {"nn/parallel/replicate.py", "", Mechanism::kDataParallelReplica},
    {"nn/parallel/data_parallel.py", "replicate", Mechanism::kDataParallelReplica},
    {"nn/parallel/scatter_gather.py", "gather", Mechanism::kDataParallelGather},
    {"nn/parallel/data_parallel.py", "gather", Mechanism::kDataParallelGather},
    {"distributed/fsdp/", "unshard", Mechanism::kFsdpGathered},
    {"distributed/fsdp/", "all_gather", Mechanism::kFsdpGathered},
    {"deepspeed/runtime/zero/", "", Mechanism::kZero},
    {"transformers/cache_utils.py", "", Mechanism::kKeyValueCache},
    {"", "nested_concat", Mechanism::kEvaluationCollect},
    {"", "pad_and_concatenate", Mechanism::kEvaluationCollect},
    {"torch/optim/swa_utils.py", "", Mechanism::kMovingAverage},
    {"", "modelema", Mechanism::kMovingAverage},
    {"ema.py", "", Mechanism::kMovingAverage},
};

std::string small_letters(const std::string& text) {
  std::string out = text;
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::optional<Mechanism> mechanism_of(const record::Record& record, uint32_t stack) {
  if (stack >= record.stacks.size()) return std::nullopt;
  for (const abi::Frame& frame : record.stacks[stack]) {
    const std::string& path = record.string(frame.file);
    const std::string file = small_letters(path);
    const std::string function = small_letters(record.string(frame.function));
    for (const Pattern& pattern : kPatterns) {
      if (file.find(pattern.file) == std::string::npos ||
          function.find(pattern.function) == std::string::npos)
        continue;
      return pattern.mechanism;
    }
  }
  return std::nullopt;
}

bool is_head(const std::string& module) {
  const std::string name = small_letters(module);
  for (const char* end : {"lm_head", "embed_out", "output_projection", "vocab_proj"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// Operators that a formula is made of, element by element.
bool is_elementwise(const std::string& op) {
  for (const char* name :
       {"mul", "div", "add", "sub", "rsub", "pow", "square", "tanh", "sigmoid", "exp", "erf",
        "reciprocal", "neg", "sqrt", "rsqrt", "softplus", "log1p"}) {
    if (op.starts_with("aten::") && std::string_view(op).substr(6) == name) return true;
  }
  return false;
}

// Activation functions that are written as formulas: several tensors of one shape, made one after
// the other by the same function for the same module, element by element by different operators.
// What PyTorch itself calls is fused.
class Formulas {
 public:
  explicit Formulas(const Timeline& timeline) : timeline_(timeline), record_(timeline.record()) {}

  void look(const Allocation& a) {
    const abi::MemoryEvent& event = record_.events[a.alloc_event];
    if (a.category != Category::kActivation || event.op == abi::kNoId ||
        a.stack >= record_.stacks.size() || record_.stacks[a.stack].empty())
      return;
    const std::string& op = record_.string(event.op);
    const bool is_cast = op == "aten::_to_copy";
    if (!is_cast && !is_elementwise(op)) return;
    const abi::Frame& innermost = record_.stacks[a.stack].front();
    if (owner_of(record_.string(innermost.file)) == FileOwner::kTorch) return;
    Formula& formula = formulas_[{innermost.file, innermost.function, event.module,
                                  a.requested_bytes, timeline_.stacks()[a.stack].user_frame}];
    formula.bytes += a.requested_bytes;
    ++formula.tensors;
    if (is_cast)
      formula.has_casts = true;
    else
      formula.ops.insert(event.op);
    formula.site = timeline_.stacks().site(event);
  }

  MechanismBytes sum() {
    join_casts();
    constexpr uint64_t kLeast = 3, kMost = 12;  // more of them are a loop over time
    MechanismBytes out;
    out.mechanism = Mechanism::kUnfusedActivation;
    uint64_t largest = 0;
    for (const auto& [key, formula] : formulas_) {
      if (formula.tensors < kLeast || formula.tensors > kMost || formula.ops.size() < 2) continue;
      out.bytes += formula.bytes;
      out.count += formula.tensors;
      ++out.groups;
      if (formula.bytes <= largest) continue;
      largest = formula.bytes;
      out.site = formula.site;
    }
    return out;
  }

 private:
  struct Formula {
    uint64_t bytes = 0, tensors = 0;
    bool has_casts = false;
    std::set<uint32_t> ops;
    Site site;
  };
  // File, function, module, bytes of a tensor, the user's frame.
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t, int>;

  // Under autocast a part of one formula is in float32, the rest in a type of half the size.
  void join_casts() {
    for (auto& [key, formula] : formulas_) {
      Key half = key;
      std::get<3>(half) /= 2;
      const auto other = formulas_.find(half);
      if (other == formulas_.end() || !(formula.has_casts || other->second.has_casts)) continue;
      formula.bytes += other->second.bytes;
      formula.tensors += other->second.tensors;
      formula.ops.merge(other->second.ops);
      other->second = {};
    }
  }

  const Timeline& timeline_;
  const record::Record& record_;
  std::map<Key, Formula> formulas_;
};

}  // namespace

std::vector<MechanismBytes> find_mechanisms(const Timeline& timeline,
                                            const std::vector<const Allocation*>& live) {
  const record::Record& record = timeline.record();
  std::unordered_map<uint32_t, std::optional<Mechanism>> known;
  std::array<MechanismBytes, kMechanismCount> found{};
  std::array<uint64_t, kMechanismCount> largest{};
  Formulas formulas(timeline);
  for (const Allocation* a : live) {
    if (a->before_history) continue;
    formulas.look(*a);
    auto [entry, made] = known.try_emplace(a->stack);
    if (made) entry->second = mechanism_of(record, a->stack);
    std::optional<Mechanism> mechanism = entry->second;
    const abi::MemoryEvent& event = record.events[a->alloc_event];
    if (a->category == Category::kKeyValueCache) mechanism = Mechanism::kGenerationCache;
    if (timeline.stacks()[a->stack].makes_buckets) mechanism = Mechanism::kDdpBuckets;
    if (!mechanism && a->category == Category::kActivation && event.module != abi::kNoId &&
        is_head(record.string(event.module)))
      mechanism = Mechanism::kLanguageModelHead;
    if (!mechanism) continue;
    const auto index = static_cast<size_t>(*mechanism);
    MechanismBytes& sum = found[index];
    sum.mechanism = *mechanism;
    sum.bytes += a->requested_bytes;
    ++sum.count;
    if (a->requested_bytes > largest[index]) {
      largest[index] = a->requested_bytes;
      sum.site = timeline.stacks().site(event);
    }
  }
  std::vector<MechanismBytes> out;
  if (MechanismBytes unfused = formulas.sum(); unfused.bytes > 0) out.push_back(std::move(unfused));
  for (const MechanismBytes& sum : found) {
    if (sum.bytes > 0) out.push_back(sum);
  }
  std::stable_sort(out.begin(), out.end(), [](const MechanismBytes& a, const MechanismBytes& b) {
    return a.bytes > b.bytes;
  });
  return out;
}

Statement statement_of(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kDataParallelReplica: return Statement::kByDataParallelReplica;
    case Mechanism::kDataParallelGather: return Statement::kByDataParallelGather;
    case Mechanism::kDdpBuckets: return Statement::kByDdpBuckets;
    case Mechanism::kFsdpGathered: return Statement::kByFsdpGathered;
    case Mechanism::kZero: return Statement::kByZero;
    case Mechanism::kKeyValueCache: return Statement::kByKeyValueCache;
    case Mechanism::kGenerationCache: return Statement::kByGenerationCache;
    case Mechanism::kLanguageModelHead: return Statement::kByLanguageModelHead;
    case Mechanism::kEvaluationCollect: return Statement::kByEvaluationCollect;
    case Mechanism::kMovingAverage: return Statement::kByMovingAverage;
    case Mechanism::kUnfusedActivation: return Statement::kUnfusedActivation;
  }
  return Statement::kNothing;
}

Remedy remedy_of(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kDataParallelReplica:
    case Mechanism::kDataParallelGather: return Remedy::kDdpInstead;
    case Mechanism::kDdpBuckets: return Remedy::kGradientAsBucketView;
    case Mechanism::kFsdpGathered: return Remedy::kFsdpReshard;
    case Mechanism::kZero: return Remedy::kZeroBuckets;
    case Mechanism::kKeyValueCache: return Remedy::kNoUseCache;
    case Mechanism::kGenerationCache: return Remedy::kFewerTokens;
    case Mechanism::kLanguageModelHead: return Remedy::kFewerLogits;
    case Mechanism::kEvaluationCollect: return Remedy::kEvalAccumulation;
    case Mechanism::kMovingAverage: return Remedy::kAverageOnHost;
    case Mechanism::kUnfusedActivation: return Remedy::kFusedActivation;
  }
  return Remedy::kNothing;
}

}  // namespace tonnage::analysis
