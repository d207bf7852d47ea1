// What a card is connected to.
#pragma once

#include "nvml/state.h"

namespace tonnage::nvml {

// Cards with this many links or more are joined by switches; fewer go over a bridge to the
// neighbour (devices 0 and 1, 2 and 3, …), if there is one. A card alone in its session has no
// partner, and then NVML answers as if it had no links: so it was seen on a machine with one H200,
// while on one with two every link was active and led to a switch that the machine hid.
inline constexpr int kLinksOfSwitchedCards = 6;

inline bool is_switched(const abi::CardDesc& card) {
  return card.nvlink_links >= kLinksOfSwitchedCards;
}

// The device at the other end of a bridge; -1: none.
int bridged_neighbour(const abi::Session& session, int index);

// True if the device's links lead somewhere.
bool is_linked(const abi::Session& session, int index);
bool link_is_active(const abi::Session& session, int index, unsigned int link);

// Whether two devices reach each other's memory: over NVLink, or over PCIe where the driver allows
// it (not on GeForce cards).
bool nvlink_joins(const abi::Session& session, int a, int b);
bool peers(const abi::Session& session, int a, int b);

// MB/s of one link in one direction, as NVML answers: on an H200 26562, which is 17/16 of the data
// sheet's 25000.
unsigned int link_megabytes_per_s(const abi::CardDesc& card);
unsigned int link_version(const abi::CardDesc& card);

}  // namespace tonnage::nvml
