// Follows what threads do with RecordFunction's callbacks, and hands each call to the observers:
// lines, parameters, phases, steps, gradients, caches, values.
#pragma once

namespace tonnage::recorder {

// Registers the callbacks; once.
void observe_operators();

}  // namespace tonnage::recorder
