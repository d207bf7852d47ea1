// The table of messages: who prints what.
#pragma once

#include <span>

#include "sources/messages/message_pattern.h"

namespace tonnage::sources {

std::span<const MessageRow> message_rows();

}  // namespace tonnage::sources
