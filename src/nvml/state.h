// The virtual NVML (libnvidia-ml.so.1): what every entry point needs from the session.
//
// An entry point is written as NVML_ENTRY(nvmlDeviceGetName)(nvmlDevice_t device, …) { … }; its
// type is checked against nvml.h. tools/gen_nvml_stubs.py finds these, and makes the exported
// functions: each jumps through a table to the entry point here, to "not supported", or, when the
// session passes through, to the real NVML.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS  // the names without a version are the old ones, with their
                                       // old structs
#include <nvml.h>
// Old functions are still asked for, so they are still answered.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "abi/session.h"

#define NVML_ENTRY(name)                                                          \
  extern "C" __attribute__((visibility("hidden"))) decltype(name) tonnage_##name; \
  extern "C" nvmlReturn_t tonnage_##name
#define NVML_TEXT_ENTRY(name)                                                     \
  extern "C" __attribute__((visibility("hidden"))) decltype(name) tonnage_##name; \
  extern "C" const char* tonnage_##name

namespace tonnage::nvml {

// For the C entry points, which stand outside every namespace.
namespace abi = tonnage::abi;

// A handle: a device of the session, or the slice of a MIG device (its parent is then only its
// frame, see is_slice).
struct Handle {
  int index;
  bool is_slice;
};

// Null before nvmlInit or after the last nvmlShutdown.
abi::Session* session();

// The handle behind a pointer that a program gave us; null if it is none of ours or the library is
// not initialised.
const Handle* handle_of(nvmlDevice_t device);
nvmlDevice_t device_handle(int index);
nvmlDevice_t slice_handle(int index);

// Where an entry point starts: `card` and `handle`, or the error that NVML answers.
#define NVML_DEVICE(device)                                              \
  if (!::tonnage::nvml::session()) return NVML_ERROR_UNINITIALIZED;      \
  const auto* handle = ::tonnage::nvml::handle_of(device);               \
  if (!handle) return NVML_ERROR_INVALID_ARGUMENT;                       \
  const auto& card = ::tonnage::nvml::session()->devices[handle->index]; \
  (void)card
#define NVML_NOT_NULL(pointer) \
  if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT

// Copies with a terminating zero.
nvmlReturn_t give_text(std::string_view text, char* out, unsigned int length);

// "GPU-…" or "MIG-…" with 36 characters of UUID.
void uuid_text(const abi::CardDesc& card, bool slice, char out[48]);
// "00000000:00:06.0"; legacy: "0000:00:06.0".
void bus_text(const abi::CardDesc& card, bool legacy, char* out, size_t n);

uint64_t used_bytes(const abi::Session& session,
                    int index);  // by all processes, at most the card's own

// The processes that live and hold memory on the device.
void each_process(const abi::Session& session, int index,
                  void (*visit)(void* argument, int32_t pid, uint64_t bytes), void* argument);

int attribute(const abi::CardDesc& card, int number);  // CUdevice_attribute; 0 if there is none

// The card at rest (activity.cpp).
inline constexpr unsigned int kRestingCelsius = 30;
unsigned int least_power_limit(const abi::CardDesc& card);  // milliwatts

enum class Family { kGeforce, kTitan, kWorkstation, kDataCentre };
Family family_of(const abi::CardDesc& card);

}  // namespace tonnage::nvml
