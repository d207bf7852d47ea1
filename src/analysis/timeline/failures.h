// Failures: which out-of-memory events of a record belong together, and which of them ended
// anything.
//
// One failure of a program may be many events. Inside one call, a convolution of cuDNN tries one
// algorithm after the other, and each may be refused its workspace. If one of them works with the
// memory that is free, the program gets no error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/timeline/stacks.h"
#include "analysis/timeline/steps.h"
#include "record/record.h"

namespace tonnage::analysis {

struct OomAttempts {
  uint32_t first = 0, last = 0;  // kOom or kDeviceOom events of one call
  uint32_t count = 1;
  bool overcome = false;  // the call went on with less: no error reached the program
};

// In order of the events. Cost: one pass.
std::vector<OomAttempts> find_oom_attempts(const record::Record& record, const Stacks& stacks);

// Who asked for what was refused.
enum class Asker : uint8_t {
  kProgram,  // the program itself, or a library that is not told apart
  kPyTorch,
  kCublas,
  kCudnn,
  kCufft,
  kCusolver,
  kCusparse,
  kNccl,
  kCupy,
  kPool,          // a memory pool of the driver's
  kContext,       // the driver itself: for a context,
  kCode,          // for the machine code of kernels,
  kStreams,       // for streams,
  kLocalMemory,   // for local memory of kernels,
  kGraph,         // for a graph
  kOtherLibrary,  // Refusal::library has its name
};
const char* asker_name(Asker asker);  // as JSON has it: "local_memory"

// What became of a refusal.
enum class Fate : uint8_t {
  kRetried,   // the same request was served after something was freed (PyTorch's cache)
  kOtherWay,  // the library did with less: no error reached the program
  kGotOver,   // an error reached the program, and the command went on
  kEnded,     // the command ended by it
};
const char* fate_name(Fate fate);

struct Refusal {
  OomAttempts events;
  Asker asker = Asker::kProgram;
  std::string library;  // kOtherLibrary: its name
  Fate fate = Fate::kGotOver;
  uint32_t process = 0;
  int device = 0;
  bool by_host = false;  // a limit of the host's was the reason (HostRefusals)
};

// All refusals of a record, in order of their first events: PyTorch's errors, those of other
// libraries, and the driver's. One refusal of the driver's that PyTorch passed on is one refusal.
// Its fate follows from what the process did next and from how the command ended.
std::vector<Refusal> find_refusals(const record::Record& record, const Stacks& stacks,
                                   const std::vector<Step>& steps);

// Requests in one place that a limit of the host's refused (kHostRefusal).
struct HostRefusals {
  uint32_t first = 0, last = 0, count = 1;  // events
  bool ended = false;                       // the command ended by it
};
// In order of the events; `refusals` are those of find_refusals.
std::vector<HostRefusals> find_host_refusals(const record::Record& record,
                                             const std::vector<Refusal>& refusals);

}  // namespace tonnage::analysis
