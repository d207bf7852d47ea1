// Whether the current CUDA stream is being captured into a graph.
#pragma once

namespace tonnage::recorder {

// True while kernels that this thread launches are recorded for later instead of run: values
// computed now hold once only.
bool capturing();

}  // namespace tonnage::recorder
