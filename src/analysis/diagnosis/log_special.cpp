// Messages that do not say "PyTorch's allocator found no memory": disguised ones, the host's, and
// those of compilers that know the whole program.
#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_log.h"

namespace tonnage::analysis {
namespace {

using sources::LogFramework;
using sources::LogOom;
using sources::OomFormat;
using S = Statement;
using R = Remedy;

uint64_t size(const std::optional<sources::LogSize>& printed_size) {
  return printed_size ? printed_size->bytes : 0;
}

Finding& add(std::vector<Finding>& out, Cause cause, Statement title, std::vector<Fact> text,
             double confidence, uint64_t bytes = 0) {
  Finding finding;
  finding.cause = cause;
  finding.title = fact(title);
  finding.text = std::move(text);
  finding.confidence = confidence;
  finding.bytes = bytes;
  out.push_back(std::move(finding));
  return out.back();
}

void shared_memory(const LogOom& oom, std::vector<Finding>& out) {
  Finding& finding = add(out, Cause::kHostMemory, S::kTitleSharedMemoryFull,
                         {fact(S::kSharedMemoryFull)}, 0.95, size(oom.requested));
  if (oom.framework == sources::LogFramework::kNccl)
    finding.text = {fact(S::kSharedMemoryFullOfNccl)};
  if (oom.requested) finding.text.push_back(fact(S::kRequestedThere, {printed(oom.requested)}));
  finding.advice = {advice(R::kLargerShm), advice(R::kFewerWorkers)};
  // A bus error alone: most often that, but not always.
  if (oom.text.find("SIGBUS") != std::string::npos ||
      oom.text.find("Bus error (core") != std::string::npos) {
    finding.confidence = 0.7;
    finding.advice.push_back(advice(R::kBusErrorElsewhere));
  }
}

// Whose users run models and do not train them.
bool serves(sources::LogFramework framework) {
  using F = sources::LogFramework;
  return framework == F::kOllama || framework == F::kLlamaCpp || framework == F::kVllm ||
         framework == F::kTgi || framework == F::kSglang;
}

void killed(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  Finding& finding =
      add(out, Cause::kHostMemory, S::kTitleHostMemory, {}, 0.95, size(oom.requested));
  if (oom.framework == sources::LogFramework::kRay && oom.allocated && oom.capacity) {
    finding.text = {fact(S::kRayKilled, {printed(oom.allocated), printed(oom.capacity)})};
    if (oom.requested) finding.text.push_back(fact(S::kWorkerHeld, {printed(oom.requested)}));
  } else if (oom.text.find("The paging file") != std::string::npos) {
    finding.text = {fact(S::kPagingFile)};
    finding.advice = {advice(R::kLargerPagingFile)};
    return;
  } else if (oom.allocated && oom.capacity) {
    finding.text = {fact(S::kOverMemoryLimit, {printed(oom.allocated), printed(oom.capacity)})};
  } else if (oom.format == OomFormat::kServingSwap) {
    finding.text = {fact(S::kSwapTooLarge, {printed(oom.requested), printed(oom.capacity)})};
    finding.advice.push_back(advice(R::kSmallerSwap));
  } else if (oom.requested && oom.free) {
    finding.text = {fact(S::kHostRefusedOfFree, {printed(oom.requested), printed(oom.free)})};
  } else if (oom.requested) {
    finding.text = {fact(S::kHostRefused, {printed(oom.requested)})};
  } else if (oom.format == OomFormat::kHostKilled) {
    finding.text = {fact(S::kKilledFromOutside)};
    if (oom.allocated) finding.text.push_back(fact(S::kKilledHeld, {printed(oom.allocated)}));
    finding.confidence = oom.allocated ? 0.95 : 0.7;
    if (oom.framework == sources::LogFramework::kDeepSpeed)
      finding.advice.push_back(advice(R::kDeepSpeedHost));
    finding.advice.push_back(advice(R::kLookForKiller));
  } else {
    finding.text = {fact(S::kHostRefusedNoFigures)};
  }
  if (oom.format == OomFormat::kHostArray && !oom.shape.empty())
    finding.advice.push_back(advice(R::kMetricByBatch, {printed(oom.requested)}));
  else if (trace.collects)
    finding.advice.push_back(advice(R::kMetricByBatchUnknown));
  finding.advice.push_back(advice(serves(oom.framework) ? R::kSmallerModelOnHost : R::kLessOnHost));
}

void pinned(const LogOom& oom, std::vector<Finding>& out) {
  Finding& finding = add(out, Cause::kHostMemory, S::kTitlePinned,
                         {oom.requested ? fact(S::kPinnedRefused, {printed(oom.requested)})
                                        : fact(S::kPinnedRefusedNoFigures)},
                         0.85, size(oom.requested));
  finding.advice = {advice(R::kLessPinned), advice(R::kLessOnHost)};
}

void mps(const LogOom& oom, std::vector<Finding>& out) {
  const uint64_t own = size(oom.allocated), other = size(oom.other);
  if (other > own) {
    Finding& finding = add(out, Cause::kOutsideAllocator, S::kTitleUnifiedOthers,
                           {fact(S::kUnifiedOthers, {printed(oom.allocated), printed(oom.other),
                                                     printed(oom.capacity)})},
                           0.9, other);
    finding.kind = FindingKind::kOutside;
    finding.advice.push_back(advice(R::kCloseOthers, {printed(oom.other)}, other));
  } else {
    Finding& finding = add(out, Cause::kCapacity, S::kTitleUnifiedFull,
                           {fact(S::kUnifiedFull, {printed(oom.allocated), printed(oom.capacity),
                                                   printed(oom.requested)})},
                           0.8, own);
    finding.advice.push_back(advice(R::kSmallerBatch));
  }
  out.back().advice.push_back(advice(R::kWatermarkOnlyLifts));
}

void torch_storage(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  Cause cause = Cause::kCapacity;
  std::vector<Fact> text = {fact(S::kTorchStorage, {name("THC" + oom.detail)})};
  if (trace.backward) {
    cause = Cause::kActivations;
    text.push_back(fact(S::kInBackward));
  }
  if (trace.optimizer && !trace.backward) text.push_back(fact(S::kInOptimizer));
  Finding& finding = add(out, cause, S::kTitleTorchStorage, std::move(text), 0.8);
  finding.advice = {advice(R::kSmallerBatchFreesActivations), advice(R::kNewerTorchForFigures)};
}

void driver(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  if (trace.pinning) return pinned(oom, out);
  const bool torch = oom.framework == LogFramework::kPyTorch || trace.torch;
  const bool nobody = oom.framework == LogFramework::kUnknown;
  Finding& finding = add(out, Cause::kDriverError, S::kTitleDriver,
                         {trace.starting ? fact(S::kDriverRefusedContext)
                          : torch        ? fact(S::kDriverRefused)
                          : nobody       ? fact(S::kDriverRefusedAnybody)
                                         : fact(S::kDriverRefusedLibrary, {asking_library(oom)})},
                         trace.starting ? 0.8 : 0.6);
  if (trace.backward) finding.text.push_back(fact(S::kInBackward));
  finding.advice = {advice(R::kLookWhoHolds)};
  if (torch) finding.advice.push_back(advice(R::kRecordHistory));
  if (!torch && !nobody) finding.advice = remedies_of_library(oom);
}

void library(const LogOom& oom, std::vector<Finding>& out) {
  const bool sure = oom.format == OomFormat::kLibraryAllocFailed;
  const bool torch = oom.framework == LogFramework::kPyTorch;
  const Fact text =
      torch ? fact(sure ? S::kLibraryHandle : S::kLibraryNotReady)
            : fact(sure ? S::kLibraryHandleOf : S::kLibraryNotReadyOf, {asking_library(oom)});
  Finding& finding = add(out, Cause::kLibrary, S::kNothing, {text}, sure ? 0.85 : 0.7);
  if (!torch) {
    finding.title = oom.detail.empty() ? fact(S::kTitleLibraryFull, {asking_library(oom)})
                                       : fact(S::kTitleLibraryHandle, {name(oom.detail)});
    finding.advice = remedies_of_library(oom);
    if (oom.framework == LogFramework::kTensorFlow)
      finding.advice.insert(finding.advice.begin(), advice(R::kTensorFlowGrowth));
    return;
  }
  finding.title =
      fact(sure ? S::kTitleLibraryHandle : S::kTitleLibraryNotReady, {name(oom.detail)});
  finding.advice = {advice(sure ? R::kHandleEarly : R::kHalfBatchShows),
                    advice(sure ? R::kLaunchBlocking : R::kVersionsMatch)};
}

void nccl(const LogOom& oom, std::vector<Finding>& out) {
  Finding& finding = add(out, Cause::kNccl, S::kTitleNccl,
                         {oom.requested ? fact(S::kNcclAsked, {printed(oom.requested)})
                                        : fact(S::kNcclAskedNoFigures)},
                         0.9, size(oom.requested));
  finding.kind = FindingKind::kOutside;
  finding.advice = {advice(R::kRoomForNccl), advice(R::kFewerChannels)};
}

void tensorflow(const LogOom& oom, std::vector<Finding>& out) {
  std::string shape;
  for (const uint64_t dim : oom.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(dim);
  std::vector<Fact> text;
  if (shape.empty())
    text.push_back(!oom.requested ? fact(S::kLibraryRefused, {asking_library(oom)})
                   : oom.detail.empty()
                       ? fact(S::kAskedFor, {printed(oom.requested)})
                       : fact(S::kAskedForBy, {printed(oom.requested), name(oom.detail)}));
  else if (oom.requested)
    text.push_back(
        fact(S::kShapeDidNotFit, {name(shape), name(oom.dtype), bytes(oom.requested->bytes)}));
  else
    text.push_back(fact(S::kShapeDidNotFitNoType, {name(shape)}));
  const bool room = oom.capacity && oom.allocated && oom.requested &&
                    above(oom.capacity->bytes, oom.allocated->bytes) >= oom.requested->bytes;
  if (room) {
    const uint64_t free = oom.capacity->bytes - oom.allocated->bytes;
    text.push_back(fact(S::kPoolInPieces, {bytes(free), bytes(oom.capacity->bytes)}));
    Finding& finding =
        add(out, Cause::kFragmentation, S::kTitlePoolInPieces, std::move(text), 0.8, free);
    finding.advice = {advice(R::kDriverPool, {}, free)};
    return;
  }
  if (oom.capacity && oom.allocated)
    text.push_back(fact(S::kInUseOf, {bytes(oom.allocated->bytes), bytes(oom.capacity->bytes)}));
  Finding& finding = add(out, Cause::kActivations, S::kTitleTensorDidNotFit, std::move(text), 0.7,
                         size(oom.requested));
  if (oom.shape.size() >= 2)
    finding.advice.push_back(
        advice(R::kHalfFirstDimension,
               {count(oom.shape[0]), count(std::max<uint64_t>(oom.shape[0] / 2, 1))},
               oom.requested ? std::optional<uint64_t>(oom.requested->bytes / 2) : std::nullopt));
  finding.advice.push_back(advice(R::kKerasMixedPrecision));
}

void xla_program(const LogOom& oom, Finding& finding) {
  if (!oom.program) return;
  finding.text.push_back(fact(S::kXlaProgram, {printed(oom.program), printed(oom.arguments),
                                               printed(oom.outputs), printed(oom.temporaries)}));
  if (oom.fragmentation && oom.fragmentation->bytes >= oom.program->bytes / 50)
    finding.text.push_back(fact(S::kXlaFragmentation, {printed(oom.fragmentation)}));
  if (oom.peak) finding.text.push_back(fact(S::kXlaLargestBuffer, {printed(oom.peak)}));
  const uint64_t outputs = size(oom.outputs), temporaries = size(oom.temporaries),
                 arguments = size(oom.arguments);
  if (outputs >= temporaries && outputs >= arguments) {
    finding.cause = Cause::kOutputs;
    finding.title = fact(S::kTitleXlaOutputs);
    finding.advice = {advice(R::kReturnLess, {printed(oom.outputs)}, outputs),
                      advice(R::kDonate, {printed(oom.arguments)}, std::min(outputs, arguments))};
  } else if (temporaries >= arguments) {
    finding.cause = Cause::kActivations;
    finding.title = fact(S::kTitleXlaTemporaries);
    finding.advice = {advice(R::kRemat, {printed(oom.temporaries)}, temporaries / 2),
                      advice(R::kDonate, {printed(oom.arguments)}, std::min(outputs, arguments))};
  } else {
    finding.cause = Cause::kModelState;
    finding.title = fact(S::kTitleXlaArguments);
    finding.advice = {advice(R::kShardArguments, {printed(oom.arguments)}, arguments / 2),
                      advice(R::kDonate, {printed(oom.arguments)}, std::min(outputs, arguments))};
  }
}

void jax(const LogOom& oom, std::vector<Finding>& out) {
  if (oom.format == OomFormat::kXlaMemorySpace) {
    const uint64_t over = above(size(oom.allocated), size(oom.capacity));
    Finding& finding =
        add(out, Cause::kCapacity, S::kTitleProgramTooLarge,
            {fact(S::kProgramTooLarge,
                  {printed(oom.allocated), printed(oom.capacity), name(oom.detail), bytes(over)})},
            0.95, over);
    xla_program(oom, finding);
    finding.title = fact(S::kTitleProgramTooLarge);
    finding.advice.insert(finding.advice.begin(), advice(R::kHaveToGo, {bytes(over)}, over));
    finding.advice.push_back(advice(R::kAccumulationAddsBuffer));
    return;
  }
  if (oom.format == OomFormat::kXlaReserve) {
    const uint64_t missing = above(size(oom.requested), size(oom.free));
    Finding& finding = add(out, Cause::kCapacity, S::kTitleDeviceFull,
                           {fact(S::kAskedOfFree, {printed(oom.requested), printed(oom.free)})},
                           0.85, size(oom.requested));
    if (oom.allocated && oom.capacity)
      finding.text.push_back(
          fact(S::kDeviceAllocated, {printed(oom.allocated), printed(oom.capacity)}));
    xla_program(oom, finding);
    finding.title = fact(S::kTitleDeviceFull);
    finding.advice.insert(finding.advice.begin(), advice(R::kHaveToGo, {bytes(missing)}, missing));
    return;
  }
  std::vector<Fact> text;
  if (oom.free && oom.requested)
    text.push_back(fact(S::kAskedOfFree, {printed(oom.requested), printed(oom.free)}));
  else
    text.push_back(oom.detail.empty()
                       ? fact(S::kMoreAsked, {printed(oom.requested)})
                       : fact(S::kMoreAskedBy, {printed(oom.requested), name(oom.detail)}));
  text.push_back(fact(S::kJaxTakesAtStart));
  Finding& finding =
      add(out, Cause::kCapacity, S::kTitleDeviceFull, std::move(text), 0.7, size(oom.requested));
  xla_program(oom, finding);
  if (finding.advice.empty()) finding.advice.push_back(advice(R::kRematOrBatch));
  finding.advice.push_back(advice(R::kJaxShare));
  finding.advice.push_back(advice(R::kMemoryAnalysis));
}

}  // namespace

bool diagnose_host(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  switch (oom.format) {
    case OomFormat::kHostShared: shared_memory(oom, out); return true;
    case OomFormat::kCpuAllocator:
    case OomFormat::kHostKilled:
    case OomFormat::kHostArray:
    case OomFormat::kServingSwap:
    case OomFormat::kXlaHost: killed(oom, trace, out); return true;
    case OomFormat::kPinnedHost: pinned(oom, out); return true;
    case OomFormat::kMps: mps(oom, out); return true;
    case OomFormat::kMetalBuffer: {
      Finding& finding =
          add(out, Cause::kRequestTooLarge, S::kTitleMetalBuffer,
              {fact(S::kMetalBuffer, {printed(oom.requested)})}, 0.95, size(oom.requested));
      finding.advice = {
          advice(R::kSplitTensor, {printed(oom.requested), bytes(size(oom.requested) / 2)}),
          advice(R::kSmallerBatch)};
      return true;
    }
    default: return false;
  }
}

bool diagnose_compiled(const LogOom& oom, std::vector<Finding>& out) {
  switch (oom.format) {
    case OomFormat::kTensorFlowDevice: {
      Finding& finding =
          add(out, Cause::kHarmless, S::kNothing,
              {fact(S::kTensorFlowTries, {printed(oom.requested), asking_library(oom)})}, 0.7);
      finding.title = fact(S::kTitleTensorFlowTries, {asking_library(oom)});
      finding.advice = {
          advice(oom.framework == LogFramework::kJax ? R::kJaxShare : R::kTensorFlowGrowth)};
      return true;
    }
    case OomFormat::kTensorFlowShape:
    case OomFormat::kTensorFlowBfc: tensorflow(oom, out); return true;
    case OomFormat::kXlaBytes:
    case OomFormat::kXlaRequest:
    case OomFormat::kXlaReserve:
    case OomFormat::kXlaMemorySpace: jax(oom, out); return true;
    default: return false;
  }
}

bool diagnose_disguised(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  switch (oom.format) {
    case OomFormat::kPyTorchTooLarge: {
      Finding& finding =
          add(out, Cause::kRequestTooLarge, S::kTitleExabyte, {fact(S::kSizeOverflowed)}, 0.95);
      finding.advice = {advice(R::kPrintShapes)};
      return true;
    }
    case OomFormat::kTorchStorage: torch_storage(oom, trace, out); return true;
    case OomFormat::kCudaError: driver(oom, trace, out); return true;
    case OomFormat::kLibraryAllocFailed:
    case OomFormat::kLibraryNotReady: library(oom, out); return true;
    case OomFormat::kNvmlAssert: {
      Finding& finding =
          add(out, Cause::kDriverError, S::kTitleNvmlAssert, {fact(S::kNvmlAssert)}, 0.9);
      finding.advice = {advice(R::kStatsHaveFigures)};
      return true;
    }
    case OomFormat::kNcclCalloc:
    case OomFormat::kNcclWarn: nccl(oom, out); return true;
    case OomFormat::kJetson: {
      Finding& finding = add(out, Cause::kCapacity, S::kTitleBoardFull,
                             {fact(S::kBoardFull, {printed(oom.requested)})}, 0.8);
      finding.advice = {advice(R::kBoardRoom)};
      return true;
    }
    default: return false;
  }
}

}  // namespace tonnage::analysis
