// The session: the file that all processes of a run share.
#pragma once

#include "abi/session.h"

namespace tonnage::driver {

// The session that TONNAGE_SESSION names, mapped; null if there is none or it is of another build.
abi::Session* map_session();

}  // namespace tonnage::driver
