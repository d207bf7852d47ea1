// What `tonnage` exits with; `tonnage run` passes its command's own code through.
#pragma once

namespace tonnage::cli {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDoesNotFit =
    3;  // the answer is no: does not fit, or a threshold was crossed

}  // namespace tonnage::cli
