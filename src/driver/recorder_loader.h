// Loads the recorder (src/recorder) into a process that has PyTorch, so that operators, categories
// and lines are known even where no Python runs. Without a fitting recorder the program runs on and
// the record says what is missing.
#pragma once

namespace tonnage::driver {

// Called at cuInit, and again where contexts and allocations are made: CUDA may have been started
// before PyTorch was loaded. Cheap if nothing has changed. The caller holds no lock.
void load_recorder();

}  // namespace tonnage::driver
