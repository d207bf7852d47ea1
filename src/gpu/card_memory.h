// What every part of a virtual card gets from its owner: the card's memory, and a sink for events.
#pragma once

#include <cstdint>
#include <string_view>

#include "abi/driver_memory.h"
#include "abi/event.h"

namespace tonnage::gpu {

// One card's memory. Thread-safe.
class CardMemory {
 public:
  virtual ~CardMemory() = default;
  // False: the card is full; the refusal has been told.
  virtual bool charge(uint64_t bytes) = 0;
  // The same without a word, and without moving anything to make room.
  virtual bool try_charge(uint64_t bytes) = 0;
  virtual void refund(uint64_t bytes) = 0;
  virtual uint64_t free_bytes() = 0;
  virtual uint64_t total_bytes() const = 0;

  // Memory at an address came, or went. It is charged and refunded apart: charged before it is
  // told, and told before it is refunded, so that what is told of all processes together is never
  // more than the card has.
  virtual void tell_of_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) = 0;
  virtual void tell_of_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) = 0;
  // Memory for the driver itself, charged and told; false: refused, and told. What it is for, and
  // the name of the kernel or function that brought it ("": none).
  virtual bool charge_driver(uint64_t bytes, abi::DriverMemory what, std::string_view name) = 0;
};

}  // namespace tonnage::gpu
