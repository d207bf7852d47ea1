// Loads the shim (src/shim_torch) into a process that has PyTorch, so that operators, categories and lines are known even
// where no Python runs. Without a fitting shim the program runs on and the record says what is missing.
#pragma once

namespace tonnage::vgpu {

// Called at cuInit, and again where contexts and allocations are made: CUDA may have been started before PyTorch was loaded.
// Cheap where there is nothing new to see. No lock is held.
void load_shim();

}  // namespace tonnage::vgpu
