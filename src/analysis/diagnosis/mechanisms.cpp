#include "analysis/diagnosis/mechanisms.h"

#include <algorithm>
#include <array>
#include <optional>
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
    {"nn/parallel/distributed.py", "_ddp_init_helper", Mechanism::kDdpBuckets},
    {"nn/parallel/distributed.py", "_rebuild_buckets", Mechanism::kDdpBuckets},
    {"distributed/fsdp/", "unshard", Mechanism::kFsdpGathered},
    {"distributed/fsdp/", "all_gather", Mechanism::kFsdpGathered},
    {"deepspeed/runtime/zero/", "", Mechanism::kZero},
    {"transformers/cache_utils.py", "", Mechanism::kKeyValueCache},
    {"", "nested_concat", Mechanism::kEvaluationCollect},
    {"", "pad_and_concatenate", Mechanism::kEvaluationCollect},
    {"torch/optim/swa_utils.py", "", Mechanism::kMovingAverage},
    {"", "modelema", Mechanism::kMovingAverage},
    {"ema.py", "", Mechanism::kMovingAverage},
    {"transformers/activations.py", "", Mechanism::kUnfusedActivation},
    {"", "gelu", Mechanism::kUnfusedActivation},
    {"", "swish", Mechanism::kUnfusedActivation},
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
      // PyTorch's own functions of that name are fused.
      if (pattern.mechanism == Mechanism::kUnfusedActivation && owner_of(path) == FileOwner::kTorch)
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

}  // namespace

std::vector<MechanismBytes> find_mechanisms(const Timeline& timeline,
                                            const std::vector<const Allocation*>& live) {
  const record::Record& record = timeline.record();
  std::unordered_map<uint32_t, std::optional<Mechanism>> known;
  std::array<MechanismBytes, kMechanismCount> found{};
  std::array<uint64_t, kMechanismCount> largest{};
  for (const Allocation* a : live) {
    if (a->before_history) continue;
    auto [entry, made] = known.try_emplace(a->stack);
    if (made) entry->second = mechanism_of(record, a->stack);
    std::optional<Mechanism> mechanism = entry->second;
    const abi::MemoryEvent& event = record.events[a->alloc_event];
    if (!mechanism && a->category == Category::kActivation && event.module != abi::kNoId &&
        is_head(record.string(event.module)))
      mechanism = Mechanism::kLanguageModelHead;
    if (!mechanism) continue;
    // Activation functions save activations; a temporary of theirs is nothing to speak of.
    if (*mechanism == Mechanism::kUnfusedActivation && a->category != Category::kActivation)
      continue;
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
    case Mechanism::kLanguageModelHead: return Remedy::kFewerLogits;
    case Mechanism::kEvaluationCollect: return Remedy::kEvalAccumulation;
    case Mechanism::kMovingAverage: return Remedy::kAverageOnHost;
    case Mechanism::kUnfusedActivation: return Remedy::kFusedActivation;
  }
  return Remedy::kNothing;
}

}  // namespace tonnage::analysis
