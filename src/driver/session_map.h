// The session: the file that all processes of a run share.
#pragma once

#include "abi/session.h"

namespace tonnage::driver {

// The session in this file, mapped; null if there is none or it is of another build.
abi::Session* map_session(const char* path);

}  // namespace tonnage::driver
