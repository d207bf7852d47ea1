// The statements of a diagnosis, as values: which statement, with which figures. Their sentences
// are in src/report/words/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/diagnosis/statement.h"
#include "analysis/place.h"

namespace tonnage::analysis {

// One figure of a statement. Its kind says how it is written.
struct Figure {
  enum class Kind : uint8_t {
    kBytes,    // "9.71 GiB"
    kCount,    // "12"
    kTensors,  // "1 tensor", "12 tensors"
    kPercent,  // ratio 0.5: "50 %"
    kTimes,    // ratio 2.5: "2.5"
    kSite,     // "at train.py:12"
    kName,     // as it stands: names of processes, sizes as a log printed them
    kPrinted,  // number of bytes and name, as the log printed it: "4.50 GiB (4831838208 bytes)"
    kUnit,     // "step" or "iteration"; {0:a} "a step", {0:s} "steps"
    kEvery,    // "Every step", "Every 4th step"
    kRate,     // "18.0 MiB a step", "18.0 MiB every 4th step"
    kLibrary,  // number: a sources::LogFramework; "vLLM"
  };
  Kind kind = Kind::kCount;
  uint64_t number = 0;
  double ratio = 0;
  uint32_t decimals = 0;  // of kPercent and kTimes
  bool are_steps = true;  // of kUnit, kEvery and kRate
  uint32_t every = 1;     // of kEvery and kRate
  Site site;
  std::string name;
};

struct Fact {
  Statement statement = Statement::kNothing;
  std::vector<Figure> figures;
};

struct Evidence {
  Fact fact;
  std::optional<uint64_t> bytes;
  Site site;                        // empty if there is none
  std::vector<uint64_t> events;     // indices into the record; a few examples
  std::vector<uint64_t> addresses;  // of blocks
};

struct Advice {
  Remedy remedy = Remedy::kNothing;
  std::vector<Figure> figures;
  std::optional<uint64_t> saves_bytes;  // about; null: not known
};

}  // namespace tonnage::analysis
