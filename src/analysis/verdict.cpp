#include "analysis/verdict.h"

#include <signal.h>

#include <algorithm>

namespace tonnage::analysis {
namespace {

constexpr uint32_t kStepsThatRepeat = 2;  // before a run that was stopped says anything

Verdict device_verdict(const DeviceFacts& device) {
  if (device.ended_by_refusal) return Verdict::kDoesNotFit;
  if (!device.used) return Verdict::kNothingUsed;
  if (!device.total_bytes || !device.peak_bytes) return Verdict::kUnknown;
  if (*device.peak_bytes > *device.total_bytes) return Verdict::kDoesNotFit;
  return device.rests_on_assumption ? Verdict::kFitsAtMost : Verdict::kFits;
}

// A signal by which a program breaks by itself, where others come from outside.
bool is_own_signal(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL || signal == SIGSYS || signal == SIGTRAP || signal == SIGPIPE;
}

Judgement cut(Judgement judgement, CutReason reason) {
  judgement.verdict = Verdict::kCut;
  judgement.cut = reason;
  return judgement;
}

// The verdict of all devices together, where no reason outside of memory decides.
Verdict worst_of(const std::vector<Verdict>& devices) {
  const auto has = [&](Verdict verdict) {
    return std::find(devices.begin(), devices.end(), verdict) != devices.end();
  };
  for (const Verdict verdict :
       {Verdict::kDoesNotFit, Verdict::kUnknown, Verdict::kFitsAtMost, Verdict::kFits}) {
    if (has(verdict)) return verdict;
  }
  return Verdict::kNothingUsed;
}

Judgement judge_all(const VerdictFacts& facts) {
  Judgement out;
  for (const DeviceFacts& device : facts.devices) out.devices.push_back(device_verdict(device));
  out.verdict = worst_of(out.devices);
  if (facts.devices.empty() && !facts.has_session) out.verdict = Verdict::kUnknown;
  if (out.verdict == Verdict::kDoesNotFit) return out;
  if (facts.from_snapshot) {
    if (out.verdict == Verdict::kNothingUsed) out.verdict = Verdict::kUnknown;
    return out;
  }
  const record::CommandEnd& end = facts.end;
  out.stopped = stopped_as_asked(end) || facts.stopped_by_timeout;
  if (out.stopped) {
    const bool enough = !facts.lost && facts.complete_steps >= kStepsThatRepeat;
    return enough ? out : cut(out, CutReason::kStoppedEarly);
  }
  if (facts.ended_by_host) {
    out.verdict = Verdict::kFailed;
    return out;
  }
  if (end.signal != 0 && !is_own_signal(end.signal)) return cut(out, CutReason::kKilled);
  if (end.known && !succeeded(end)) {
    out.verdict = Verdict::kFailed;
    return out;
  }
  if (facts.has_session && !end.known) return cut(out, CutReason::kNoEnd);
  if (facts.lost) return cut(out, CutReason::kLostParts);
  return out;
}

}  // namespace

Judgement judge(const VerdictFacts& facts) {
  Judgement out = judge_all(facts);
  // No device fits for certain where the run as a whole does not tell.
  if (out.verdict == Verdict::kFailed || out.verdict == Verdict::kCut) {
    for (Verdict& device : out.devices) {
      if (fits(device)) device = out.verdict;
    }
  }
  return out;
}

bool stopped_as_asked(const record::CommandEnd& end) {
  if (!end.known || succeeded(end)) return false;
  const int signal = end.signal != 0 ? end.signal : end.exit_code - 128;
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return true;
  return std::any_of(end.errors.begin(), end.errors.end(),
                     [](const record::CommandError& error) { return error.interrupted; });
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits: return "fits";
    case Verdict::kFitsAtMost: return "fits_at_most";
    case Verdict::kDoesNotFit: return "does_not_fit";
    case Verdict::kFailed: return "failed";
    case Verdict::kCut: return "cut";
    case Verdict::kNothingUsed: return "nothing_used";
    case Verdict::kUnknown: break;
  }
  return "unknown";
}

const char* cut_reason_name(CutReason reason) {
  switch (reason) {
    case CutReason::kNoEnd: return "no_end";
    case CutReason::kLostParts: return "lost_parts";
    case CutReason::kKilled: return "killed";
    case CutReason::kStoppedEarly: return "stopped_early";
    case CutReason::kNone: break;
  }
  return "";
}

}  // namespace tonnage::analysis
