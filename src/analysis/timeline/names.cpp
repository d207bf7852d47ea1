// Names of enumerations as reports print them.
#include "analysis/report.h"

namespace tonnage::analysis {

const char* category_name(Category category) { return abi::category_info(category).name; }

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kInit: return "init";
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
    case Phase::kData: return "data";
    case Phase::kEval: return "eval";
    case Phase::kOther: break;
  }
  return "other";
}

const char* memory_kind_name(abi::DeviceMemoryKind kind) {
  using Kind = abi::DeviceMemoryKind;
  switch (kind) {
    case Kind::kPlain: return "plain";
    case Kind::kVirtual: return "virtual";
    case Kind::kPool: return "pool";
    case Kind::kManaged: return "managed";
    case Kind::kHostPinned: return "host_pinned";
    case Kind::kHostRegistered: return "host_registered";
    case Kind::kGraph: return "graph";
    case Kind::kModuleData: return "module_data";
    case Kind::kIpc: return "ipc";
    case Kind::kPitched: return "pitched";
    case Kind::kArray: return "array";
  }
  return "unknown";
}

}  // namespace tonnage::analysis
