// The verdict: what a record says about "does it fit", from its facts and from how the command
// ended.
//
//   const Judgement judgement = judge(facts);    // a pure function
//   judgement.verdict == Verdict::kDoesNotFit    // a refusal ended the command
//
// In this order: a refusal that ended the command (does not fit); an error of its own (failed); a
// record that lacks a part (cut); no memory on any device (nothing used); else it fits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "record/record.h"

namespace tonnage::analysis {

enum class Verdict : uint8_t {
  kUnknown,  // the card's size is not known, or what else was on it
  kFits,
  kFitsAtMost,   // the peak rests on sizes that were assumed to be as large as they can be
  kDoesNotFit,   // a refusal ended the command
  kFailed,       // the command failed for a reason of its own, or by a limit of the host's, before
                 // its memory could be judged
  kCut,          // the record is not complete
  kNothingUsed,  // nothing was put on a device
};
const char* verdict_name(Verdict verdict);  // as JSON has it: "fits_at_most"
// Whether it is a yes: fits, or fits at most.
inline bool fits(Verdict verdict) {
  return verdict == Verdict::kFits || verdict == Verdict::kFitsAtMost;
}

// Why a record is not complete.
enum class CutReason : uint8_t {
  kNone,
  kNoEnd,         // how the command ended is not in it: it still runs, or Tonnage itself was killed
  kLostParts,     // chunks are missing, or less is in it than was in use on a device
  kKilled,        // the command was killed, by whom is not known
  kStoppedEarly,  // it was stopped as asked, before two steps were done or with its last part lost
};
const char* cut_reason_name(CutReason reason);  // "stopped_early"; "" for kNone

struct DeviceFacts {
  std::optional<uint64_t> total_bytes, peak_bytes;  // the device's own; null: not known
  bool used = false;                                // any memory was put on it, or refused
  bool ended_by_refusal = false;                    // a refusal on it ended the command
  bool rests_on_assumption = false;                 // see kFitsAtMost
};

struct VerdictFacts {
  bool from_snapshot = false;
  bool has_session = false;         // of `tonnage run`: its end is expected
  bool lost = false;                // a part of the record is missing, and it may matter
  bool ended_by_host = false;       // a limit of the host's, not the card's, ended the command
  bool stopped_by_timeout = false;  // timeout(1) is part of the command and said so
  uint32_t complete_steps = 0;
  record::CommandEnd end;
  std::vector<DeviceFacts> devices;
};

struct Judgement {
  Verdict verdict = Verdict::kUnknown;
  CutReason cut = CutReason::kNone;
  bool stopped = false;  // as asked (Ctrl-C, SIGTERM): figures are those until then
  std::vector<Verdict> devices;
};

Judgement judge(const VerdictFacts& facts);

// Whether somebody asked the command to stop: SIGINT, SIGTERM or SIGHUP, also as a shell tells it.
bool stopped_as_asked(const record::CommandEnd& end);
// Whether it ended by itself with exit code 0.
inline bool succeeded(const record::CommandEnd& end) {
  return end.known && end.exit_code == 0 && end.signal == 0;
}

}  // namespace tonnage::analysis
