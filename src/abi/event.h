// The one kind of fact that a record holds, shared by those who write it (virtual driver, recorder)
// and those who read it.
//
// Plain types only, because the driver uses it inside the user's processes. On disk, events are
// packed (src/record/format.h). In memory, every reader (record, PyTorch snapshot) makes these.
#pragma once

#include <cstdint>

#include "abi/categories.h"

namespace tonnage::abi {

// Serialised: append only, never renumber.
enum class EventKind : uint8_t {
  kNone = 0,
  // The driver's view of one device. `value` is a DeviceMemoryKind for the first two.
  kDeviceAlloc = 1,  // address, size_bytes as accounted (granules included)
  kDeviceFree = 2,   // address, size_bytes
  kContext = 3,      // size_bytes: modelled bytes of a context made on `device`
  kModuleLoad =
      4,  // size_bytes for the driver itself, modelled; value: DriverMemory; name = what brought it
  kHostAlloc = 5,  // pinned or managed host memory; address, size_bytes; value: DeviceMemoryKind
  kHostFree = 6,
  kDeviceOom =
      7,  // the driver refused size_bytes; value = bytes free then; name = who asked: "program", a
          // library ("pytorch", "cublas", "nccl", "cupy" …), or what the driver wanted it for
          // itself ("context", "code", "streams", "graph", "local_memory"); "": not known
  kUnknownRead =
      8,  // host read of size_bytes whose content is unknown (zeros were given); name = operator
  kAssumedSize = 9,  // a data-dependent size was assumed; value = elements taken, size_bytes =
                     // upper bound; name = operator
  kStubCall = 10,  // a driver function without an implementation was called; name = function (once
                   // per function)
  // PyTorch's caching allocator. size_bytes is what was requested (unrounded), as in PyTorch's own
  // history.
  kAlloc = 20,
  kFreeRequested = 21,
  kFreeCompleted = 22,
  kSegmentAlloc = 23,
  kSegmentFree = 24,
  kSegmentMap = 25,
  kSegmentUnmap = 26,
  kOom = 27,       // size_bytes: request (rounded); value = bytes free on the device
  kSnapshot = 28,  // size_bytes: allocated bytes when taken
  kFreed = 29,  // in the file only: kFreeRequested, and kFreeCompleted at once; readers give both
  // Structure of the program.
  kStep = 40,   // a training step ended; value = its number from 1
  kPhase = 41,  // value = Phase entered on this thread; name = detail (optimizer class, module)
  kLabel = 42,  // the live block that contains `address` has category value (Category); name =
                // tensor's name
  kCounter =
      43,  // value = what PyTorch itself counted; name e.g. "allocated_bytes.all.peak"; device
  kMessage = 44,  // name = text for the user: something is missing or could not be followed; value:
                  // 0 note, 1 warning
  kAnnotation = 45,    // user or profiler annotation; name; value: 0 start, 1 end
  kProcessStart = 46,  // name = command; value = pid
  kProcessEnd = 47,    // value = pid; size_bytes = 0
  kKernelCount =
      48,      // value = kernel launches so far on `device` (written at steps and at the end)
  kFact = 49,  // name = "key=value": what holds for the process; the reader knows torch_version and
               // alloc_conf
  kHostRefusal = 50,  // the host, not the device, had no room for size_bytes; name = which of its
                      // limits: "address_space" (ulimit -v), "pinned_memory" (more than the host
                      // has); value = that limit, 0: none is set
  kSlot = 51,         // this process's place in the session's account; value = its identity there
                      // (gpu/ledger.h)
  kSlotGone = 52,    // value = the identity of a process that was found dead: what it held is given
                     // back. In the file only: readers give a kProcessEnd of that process
  kContextEnd = 53,  // size_bytes that a context on `device` gave back as it ended, its own and the
                     // driver's
};

enum class DeviceMemoryKind : uint8_t {
  kPlain = 0,    // cuMemAlloc and friends
  kVirtual = 1,  // cuMemCreate (expandable segments)
  kPool = 2,     // stream-ordered pools (cuMemAllocAsync)
  kManaged = 3,
  kHostPinned = 4,
  kHostRegistered = 5,
  kGraph = 6,       // owned by an instantiated graph
  kModuleData = 7,  // __device__ variables of modules
  kIpc = 8,         // opened from another process: no memory of its own
  kPitched = 9,
  kArray = 10,
};

enum class Phase : uint8_t {
  kOther = 0,
  kInit = 1,
  kForward = 2,
  kBackward = 3,
  kOptimizer = 4,
  kData = 5,
  kEval = 6,
};

inline constexpr uint32_t kNoId = 0;  // string 0 is "", stack 0 is empty

struct MemoryEvent {
  EventKind kind = EventKind::kNone;
  uint8_t device = 0;
  Phase phase = Phase::kOther;  // of the thread, when it happened
  uint8_t flags = 0;            // kEvent… bits, below
  uint32_t process = 0;         // index into Record::processes
  uint32_t thread = 0;          // small number, per process, 0 = main
  uint32_t step = 0;            // steps completed before it
  uint64_t time_ns = 0;         // since the session's start
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint64_t value = 0;  // meaning: see the kind
  uint64_t stream = 0;
  uint32_t stack = kNoId;   // innermost frame first
  uint32_t op = kNoId;      // string: innermost PyTorch operator, e.g. "aten::convolution"
  uint32_t module = kNoId;  // string: module path, e.g. "layer1.0.conv1"
  uint32_t name = kNoId;    // string: meaning by kind
};

inline constexpr uint8_t kEventModelled = 1;
inline constexpr uint8_t kEventHostSource = 2;  // kAlloc: the result of a copy from the host

// One stack frame; strings by id.
struct Frame {
  uint32_t function = kNoId;
  uint32_t file = kNoId;
  uint32_t line = 0;
};

}  // namespace tonnage::abi
