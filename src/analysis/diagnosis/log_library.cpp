// Messages of inference servers and of libraries with allocators of their own: who allocates, what
// was asked, what was there, and what this library's own settings can do.
#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_log.h"

namespace tonnage::analysis {
namespace {

using sources::LogFramework;
using sources::LogOom;
using sources::LogSize;
using sources::OomFormat;
using S = Statement;
using R = Remedy;

uint64_t size(const std::optional<LogSize>& printed_size) {
  return printed_size ? printed_size->bytes : 0;
}

Figure who(const LogOom& oom) { return asking_library(oom); }

Finding make(Cause cause, Fact title, double confidence, uint64_t bytes = 0) {
  Finding finding;
  finding.cause = cause;
  finding.title = std::move(title);
  finding.confidence = confidence;
  finding.bytes = bytes;
  return finding;
}

// Of a cache of `available` bytes that would need `needed` for `length` tokens: the length that it
// holds. Servers keep blocks of 16 tokens.
std::optional<uint64_t> length_that_fits(const LogOom& oom) {
  if (oom.tokens_that_fit) return oom.tokens_that_fit;
  if (!oom.tokens || !oom.requested || !oom.free || oom.requested->bytes == 0) return std::nullopt;
  const double each = static_cast<double>(oom.requested->bytes) / static_cast<double>(*oom.tokens);
  const auto tokens = static_cast<uint64_t>(static_cast<double>(oom.free->bytes) / each);
  return tokens / 16 * 16;
}

Finding max_length(const LogOom& oom) {
  Finding finding = make(Cause::kKvCache, fact(S::kTitleCacheTooShort), 0.95,
                         above(size(oom.requested), size(oom.free)));
  const auto fits = length_that_fits(oom);
  if (oom.requested && oom.free && oom.tokens) {
    finding.text.push_back(
        fact(S::kCacheNeeds, {count(*oom.tokens), printed(oom.requested), printed(oom.free)}));
  } else if (oom.tokens && oom.tokens_that_fit) {
    finding.text.push_back(
        fact(S::kCacheHoldsTokens, {count(*oom.tokens), count(*oom.tokens_that_fit)}));
  } else {
    finding.text.push_back(fact(S::kCacheHoldsLess));
  }
  if (fits && *fits > 0)
    finding.advice.push_back(
        advice(oom.tokens_that_fit ? R::kMaxModelLen : R::kMaxModelLenComputed, {count(*fits)}));
  if (oom.requested && oom.free)
    finding.advice.push_back(
        advice(R::kMoreShareBy, {bytes(above(size(oom.requested), size(oom.free)))}));
  else
    finding.advice.push_back(advice(R::kMoreShare));
  finding.advice.push_back(advice(R::kKvCacheFp8));
  finding.advice.push_back(advice(R::kTensorParallel));
  return finding;
}

Finding no_blocks(const LogOom& oom) {
  const bool sglang = oom.framework == LogFramework::kSglang;
  Finding finding = make(Cause::kKvCache, fact(S::kTitleNoCache), 0.9);
  finding.text.push_back(fact(S::kNothingLeftForCache, {who(oom)}));
  if (oom.fraction) finding.text.push_back(fact(S::kConfiguredShare, {times(*oom.fraction, 3)}));
  finding.advice.push_back(advice(sglang ? R::kSglangMoreStatic : R::kMoreShare));
  finding.advice.push_back(advice(R::kQuantizeOrParallel));
  finding.advice.push_back(advice(sglang ? R::kSglangChunkedPrefill : R::kFewerBatchedTokens));
  return finding;
}

Finding startup(const LogOom& oom) {
  if (oom.framework == LogFramework::kSglang) {
    Finding finding = make(Cause::kOtherProcess, fact(S::kTitleUnbalanced), 0.85);
    finding.text.push_back(fact(S::kUnbalanced));
    if (oom.free) finding.text.push_back(fact(S::kThisGpuHasFree, {printed(oom.free)}));
    if (oom.other) finding.text.push_back(fact(S::kFullestGpuHasFree, {printed(oom.other)}));
    finding.advice = {advice(R::kFreeTheGpus)};
    return finding;
  }
  const uint64_t used = above(size(oom.capacity), size(oom.free));
  Finding finding = make(Cause::kOtherProcess, fact(S::kTitleLessFreeThanShare), 0.95, used);
  finding.kind = FindingKind::kOutside;
  finding.text.push_back(
      fact(S::kLessFreeThanShare, {printed(oom.requested), times(oom.fraction.value_or(0), 2),
                                   printed(oom.capacity), printed(oom.free), bytes(used)}));
  if (oom.capacity && oom.free && oom.capacity->bytes > 0) {
    const double most = share(oom.free->bytes, oom.capacity->bytes);
    finding.advice.push_back(advice(
        R::kShareThatFits, {times(static_cast<double>(static_cast<int>(most * 100)) / 100, 2),
                            bytes(oom.free->bytes)}));
  }
  finding.advice.push_back(advice(R::kStopWhoHolds, {bytes(used)}, used));
  return finding;
}

Finding out_of_tokens(const LogOom& oom) {
  Finding finding = make(Cause::kKvCache, fact(S::kTitleNoRoomForTokens), 0.9);
  if (oom.tokens && oom.tokens_that_fit)
    finding.text.push_back(
        fact(S::kTokensAsked, {who(oom), count(*oom.tokens), count(*oom.tokens_that_fit)}));
  else if (oom.tokens)
    finding.text.push_back(fact(S::kTokensAskedOnly, {who(oom), count(*oom.tokens)}));
  else
    finding.text.push_back(fact(S::kTokensNoFigures, {who(oom)}));
  if (oom.framework == LogFramework::kSglang)
    finding.advice = {advice(R::kSglangFewerRequests), advice(R::kSglangMoreStatic),
                      advice(R::kSglangChunkedPrefill)};
  else if (oom.framework == LogFramework::kTgi)
    finding.advice = {advice(R::kTgiPrefill), advice(R::kQuantizeOrParallel)};
  else if (oom.framework == LogFramework::kLlamaCpp)
    finding.advice = {advice(R::kLlamaContext), advice(R::kLlamaFewerSlots)};
  else
    finding.advice = {advice(R::kFewerBatchedTokens), advice(R::kMoreShare)};
  return finding;
}

Finding warm_up(const LogOom& oom) {
  Finding finding = make(Cause::kKvCache, fact(S::kTitleWarmUp), 0.85);
  finding.text.push_back(oom.units ? fact(S::kWarmUpRequests, {count(*oom.units)})
                                   : fact(S::kWarmUp));
  finding.advice = {advice(R::kFewerSequences), advice(R::kLessShare)};
  return finding;
}

Finding profiling(const LogOom& oom) {
  Finding finding = make(Cause::kOtherProcess, fact(S::kTitleProfile), 0.9);
  finding.kind = FindingKind::kOutside;
  if (oom.other && oom.free)
    finding.text.push_back(fact(S::kProfileFree, {printed(oom.other), printed(oom.free)}));
  else if (oom.other && oom.allocated)
    finding.text.push_back(fact(S::kProfileUsed, {printed(oom.other), printed(oom.allocated)}));
  finding.text.push_back(fact(S::kProfileMeaning));
  finding.advice = {advice(R::kOneAfterAnother)};
  return finding;
}

Finding placement(const LogOom&) {
  Finding finding = make(Cause::kModelState, fact(S::kTitlePlacement), 0.9);
  finding.text.push_back(fact(S::kPlacement));
  finding.advice = {advice(R::kSmallerQuantization), advice(R::kOffloadPart)};
  return finding;
}

Finding kernel(const LogOom& oom) {
  Finding finding = make(Cause::kKernelResources, fact(S::kTitleKernelResources), 0.95);
  const bool shared = oom.detail.empty() || oom.detail.find("shared") != std::string::npos ||
                      (oom.units.value_or(0) > 4096);
  if (oom.units && oom.units_there) {
    if (shared || oom.detail.find("memory") != std::string::npos)
      finding.text.push_back(
          fact(S::kKernelSharedMemory,
               {name(oom.detail.empty() ? "shared memory" : oom.detail), bytes(*oom.units),
                bytes(*oom.units_there), count(*oom.units), count(*oom.units_there)}));
    else
      finding.text.push_back(
          fact(S::kKernelUnits, {name(oom.detail), count(*oom.units), count(*oom.units_there)}));
  } else {
    finding.text.push_back(fact(S::kKernelTooMany));
  }
  finding.text.push_back(fact(S::kNotDeviceMemory));
  if (oom.framework == LogFramework::kTriton || shared)
    finding.advice = {advice(R::kSmallerBlocks), advice(R::kOtherKernel)};
  else
    finding.advice = {advice(R::kFewerThreads)};
  return finding;
}

void add_request(const LogOom& oom, Finding& finding) {
  if (oom.requested && oom.free && oom.allocated)
    finding.text.push_back(fact(S::kLibraryAskedAll, {who(oom), printed(oom.requested),
                                                      printed(oom.free), printed(oom.allocated)}));
  else if (oom.requested && oom.free)
    finding.text.push_back(
        fact(S::kLibraryAskedFree, {who(oom), printed(oom.requested), printed(oom.free)}));
  else if (oom.requested && oom.allocated)
    finding.text.push_back(
        fact(S::kLibraryAskedHeld, {who(oom), printed(oom.requested), printed(oom.allocated)}));
  else if (oom.requested)
    finding.text.push_back(fact(S::kLibraryAsked, {who(oom), printed(oom.requested)}));
  else
    finding.text.push_back(fact(S::kLibraryRefused, {who(oom)}));
  if (oom.capacity) finding.text.push_back(fact(S::kCardHas, {printed(oom.capacity)}));
  if (oom.reserved && oom.allocated)
    finding.text.push_back(fact(S::kPoolReserved, {printed(oom.reserved)}));
}

// A size that no machine has: it was computed wrongly.
Finding overflowed(const LogOom& oom) {
  Finding finding =
      make(Cause::kRequestTooLarge, fact(S::kTitleExabyte), 0.95, size(oom.requested));
  finding.text = {fact(S::kLibraryAskedAbsurd, {who(oom), printed(oom.requested)}),
                  fact(S::kSizeOverflowed)};
  finding.advice = {advice(R::kPrintShapes)};
  return finding;
}

// The message names the limit that was set, and that is what refused.
bool over_own_limit(const LogOom& oom) {
  return oom.allowed && oom.allocated && oom.requested && oom.allowed->bytes > 0 &&
         oom.allocated->bytes + oom.requested->bytes > oom.allowed->bytes;
}

Finding retried(const LogOom& oom) {
  Finding finding = make(Cause::kHarmless, fact(S::kTitleRetried), 0.9);
  finding.text = {fact(S::kRetried, {who(oom), name(oom.detail)})};
  finding.advice = remedies_of_library(oom);
  return finding;
}

Finding request(const LogOom& oom) {
  constexpr uint64_t kAbsurdBytes = 1ull << 50;
  if (size(oom.requested) >= kAbsurdBytes) return overflowed(oom);
  Finding finding =
      make(Cause::kCapacity, fact(S::kTitleLibraryFull, {who(oom)}), 0.85, size(oom.requested));
  add_request(oom, finding);
  finding.advice = remedies_of_library(oom);
  if (oom.requested && oom.free) {
    const uint64_t missing = above(oom.requested->bytes, oom.free->bytes);
    if (missing > 0)
      finding.evidence.push_back(evidence(fact(S::kMissingAtLeast, {bytes(missing)}), missing));
    else
      finding.text.push_back(fact(S::kFreeButRefused));
  }
  // What the library does not hold of the card, where its message says how large the card is.
  if (oom.allocated && oom.free && oom.framework == LogFramework::kPaddle)
    finding.advice.push_back(advice(R::kLookWhoHolds));
  return finding;
}

Finding pool_limit(const LogOom& oom) {
  Finding finding =
      make(Cause::kPoolLimit, fact(S::kTitlePoolLimit, {who(oom)}), 0.9, size(oom.requested));
  if (oom.allowed && oom.allocated && oom.requested)
    finding.text.push_back(
        fact(S::kPoolLimitFigures,
             {who(oom), printed(oom.allowed), printed(oom.allocated), printed(oom.requested)}));
  else
    finding.text.push_back(oom.requested
                               ? fact(S::kPoolLimitAsked, {who(oom), printed(oom.requested)})
                               : fact(S::kPoolLimit, {who(oom)}));
  if (oom.framework == LogFramework::kCupy) finding.advice = {advice(R::kCupyLimit)};
  if (oom.framework == LogFramework::kRmm) finding.advice = {advice(R::kRmmLargerPool)};
  if (oom.framework == LogFramework::kPaddle) finding.advice = {advice(R::kPaddleLimit)};
  for (Advice& other : remedies_of_library(oom)) finding.advice.push_back(std::move(other));
  return finding;
}

}  // namespace

Figure asking_library(const LogOom& oom) {
  Figure figure = name("");
  figure.kind = Figure::Kind::kLibrary;
  figure.number = static_cast<uint64_t>(oom.framework);
  return figure;
}

std::vector<Advice> remedies_of_library(const LogOom& oom) {
  switch (oom.framework) {
    case LogFramework::kLlamaCpp:
      return {advice(R::kLlamaFewerLayers), advice(R::kLlamaContext), advice(R::kLlamaCacheType),
              advice(R::kLlamaSmallerBatch)};
    case LogFramework::kOllama:
      return {advice(R::kOllamaContext), advice(R::kOllamaCacheType), advice(R::kOllamaFewerLayers),
              advice(R::kOllamaParallel), advice(R::kOllamaSmaller)};
    case LogFramework::kOnnxRuntime:
      return {advice(R::kOrtBatch), advice(R::kOrtArena), advice(R::kOrtLimit)};
    case LogFramework::kTensorRt:
      return {advice(R::kTensorRtWorkspace), advice(R::kTensorRtShapes)};
    case LogFramework::kXgboost:
      return {advice(R::kXgboostExternal), advice(R::kXgboostBins), advice(R::kXgboostRmm)};
    case LogFramework::kRmm:
      return {advice(R::kRmmSpill), advice(R::kRmmManaged), advice(R::kRmmParts)};
    case LogFramework::kCatBoost: return {advice(R::kCatBoostRamPart), advice(R::kCatBoostBorders)};
    case LogFramework::kLightGbm: return {advice(R::kLightGbmBins)};
    case LogFramework::kPaddle: return {advice(R::kPaddleBatch), advice(R::kPaddleFraction)};
    case LogFramework::kCupy:
      return {advice(R::kCupyFreeBlocks), advice(R::kCupyParts), advice(R::kCupyManaged)};
    case LogFramework::kNumba: return {advice(R::kNumbaDelete), advice(R::kLookWhoHolds)};
    case LogFramework::kWarp: return {advice(R::kWarpPool)};
    case LogFramework::kJulia: return {advice(R::kJuliaReclaim)};
    case LogFramework::kMxnet: return {advice(R::kSmallerBatch), advice(R::kMxnetPool)};
    case LogFramework::kFaiss: return {advice(R::kFaissTemp)};
    case LogFramework::kBitsandbytes: return {advice(R::kSmallerBatch), advice(R::kBnbPaged)};
    case LogFramework::kCTranslate2: return {advice(R::kCt2Compute), advice(R::kSmallerBatch)};
    case LogFramework::kTensorFlow:
      return {advice(R::kKerasMixedPrecision), advice(R::kSmallerBatch)};
    case LogFramework::kJax: return {advice(R::kRematOrBatch), advice(R::kJaxShare)};
    case LogFramework::kUltralytics: return {advice(R::kFewerBoxes)};
    case LogFramework::kComfyUi:
      return {advice(R::kComfyLowVram), advice(R::kTiledDecode), advice(R::kSmallerPicture)};
    default: return {advice(R::kSmallerBatch), advice(R::kLookWhoHolds)};
  }
}

bool diagnose_server(const LogOom& oom, std::vector<Finding>& out) {
  switch (oom.format) {
    case OomFormat::kServingMaxLength: out.push_back(max_length(oom)); return true;
    case OomFormat::kServingNoBlocks: out.push_back(no_blocks(oom)); return true;
    case OomFormat::kServingStartup: out.push_back(startup(oom)); return true;
    case OomFormat::kServingTokens: out.push_back(out_of_tokens(oom)); return true;
    case OomFormat::kServingWarmUp: out.push_back(warm_up(oom)); return true;
    case OomFormat::kServingProfile: out.push_back(profiling(oom)); return true;
    case OomFormat::kServingPlacement: out.push_back(placement(oom)); return true;
    default: return false;
  }
}

bool diagnose_library(const LogOom& oom, std::vector<Finding>& out) {
  switch (oom.format) {
    case OomFormat::kKernelResources: out.push_back(kernel(oom)); return true;
    case OomFormat::kLibraryRequest:
      out.push_back(over_own_limit(oom) ? pool_limit(oom) : request(oom));
      return true;
    case OomFormat::kRetried: out.push_back(retried(oom)); return true;
    case OomFormat::kLibraryPool: out.push_back(pool_limit(oom)); return true;
    default: return false;
  }
}

}  // namespace tonnage::analysis
