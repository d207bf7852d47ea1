#include "recorder/values/slot.h"

#include "recorder/values/collectives.h"
#include "recorder/values/engine.h"
#include "recorder/values/formulas.h"
#include "recorder/values/statistics.h"

namespace tonnage::recorder {

ValueSlot::ValueSlot() = default;
ValueSlot::ValueSlot(ValueSlot&&) noexcept = default;
ValueSlot::~ValueSlot() = default;

}  // namespace tonnage::recorder
