// Follows the operator calls of all threads, by callbacks of RecordFunction. It passes each call to
// the observers: lines, parameters, phases, steps, gradients, caches, values.
#pragma once

namespace tonnage::recorder {

// Registers the callbacks; once.
void observe_operators();

}  // namespace tonnage::recorder
