// Names and short texts of findings.
#include <fmt/format.h>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kUnknown: return "unknown";
    case Cause::kRequestTooLarge: return "request_too_large";
    case Cause::kModelState: return "model_state";
    case Cause::kOptimizerFirstStep: return "optimizer_first_step";
    case Cause::kActivations: return "activations";
    case Cause::kLogits: return "logits";
    case Cause::kLargeSample: return "large_sample";
    case Cause::kKeptAcrossSteps: return "kept_across_steps";
    case Cause::kEvalWithGraph: return "eval_with_graph";
    case Cause::kFragmentation: return "fragmentation";
    case Cause::kMemoryFraction: return "memory_fraction";
    case Cause::kOtherProcess: return "other_process";
    case Cause::kOutsideAllocator: return "outside_allocator";
    case Cause::kOptimizerCopies: return "optimizer_copies";
    case Cause::kAutocastCopies: return "autocast_copies";
    case Cause::kCheckpointInactive: return "checkpoint_inactive";
    case Cause::kWorkspaces: return "workspaces";
    case Cause::kCapacity: return "capacity";
    case Cause::kNotCapacity: return "not_capacity";
    case Cause::kOversubscribed: return "oversubscribed";
    case Cause::kLibrary: return "library";
    case Cause::kNccl: return "nccl";
    case Cause::kHostMemory: return "host_memory";
    case Cause::kDriverError: return "driver_error";
    case Cause::kHarmless: return "harmless";
    case Cause::kLeak: return "leak";
    case Cause::kReservedUnused: return "reserved_unused";
    case Cause::kKeptByException: return "kept_by_exception";
    case Cause::kKvCache: return "kv_cache";
    case Cause::kKernelResources: return "kernel_resources";
    case Cause::kPoolLimit: return "pool_limit";
    case Cause::kOutputs: return "outputs";
    case Cause::kPrivatePool: return "private_pool";
  }
  return "unknown";
}

const char* finding_kind_name(FindingKind kind) {
  switch (kind) {
    case FindingKind::kOutOfMemory: return "out_of_memory";
    case FindingKind::kLeak: return "leak";
    case FindingKind::kFragmentation: return "fragmentation";
    case FindingKind::kOutside: return "outside";
  }
  return "unknown";
}

std::string size_text(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const double value = static_cast<double>(bytes);
  if (bytes < 1ull << 20) return fmt::format("{:.1f} KiB", value / 1024);
  if (bytes < 1ull << 30) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

std::string place_text(const Place& place, bool function) {
  if (!place.known()) return "";
  const size_t slash = place.file.find_last_of('/');
  std::string text = slash == std::string::npos ? place.file : place.file.substr(slash + 1);
  if (place.line > 0) text += fmt::format(":{}", place.line);
  if (function && !place.function.empty() && place.function != "<module>")
    text += " in " + place.function;
  return text;
}

std::string site_text(const Site& site) {
  const std::string line = place_text(site.line);
  const std::string user = place_text(site.user_line);
  if (line.empty() && user.empty()) return site.op.empty() ? "" : "in " + site.op;
  if (user.empty() || user == line) return line;
  return line.empty() ? user : user + " (in " + line + ")";
}

}  // namespace tonnage::analysis
