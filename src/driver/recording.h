// The driver's own events in the record. Every function does nothing outside a session with a record.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "abi/driver_memory.h"
#include "abi/event.h"
#include "abi/session.h"

namespace tonnage::driver {

// `places`: for each visible device, its place in the session. Events carry that place: processes
// may see different devices, or the same ones in another order. Empty: they are the session's own.
void start_recording(abi::Session& session, const std::vector<int>& places = {});
// A visible device's place in the session.
int place_in_session(int device);
// Who this process is in the session's account, and that another one is dead.
void record_slot(uint64_t identity);
void record_process_gone(uint64_t identity);
void record_device_alloc(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_device_free(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_host_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_host_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
// A refusal. `asker`: what the driver wanted it for itself; "": the program asked, and the record
// names the library that did.
void record_device_oom(int device, uint64_t requested_bytes, uint64_t free_bytes,
                       const char* asker = "");
// The host had no addresses for `bytes` of device memory: its own limit, not the card's.
void record_host_refusal(uint64_t bytes);
// The host does not have `bytes` more of memory to pin: `limit` is what it has.
void record_pinned_refusal(uint64_t bytes, uint64_t limit);
void record_context(int device, uint64_t bytes, bool modelled = true);
void record_context_end(int device, uint64_t bytes);  // what it gave back
void record_driver_memory(int device, uint64_t bytes, abi::DriverMemory what, std::string_view name,
                          bool modelled = true);
void record_unknown_read(int device, uint64_t address, uint64_t bytes);
void record_stub_call(const char* function);
// What holds for the process, e.g. the version of its PyTorch.
void record_fact(std::string_view key, std::string_view value);
void record_message(std::string_view text, bool warning);
void record_kernel_count(int device, uint64_t launches);  // so far, of this process
void stop_recording_in_child();  // after fork: the child has its own stream of chunks

// Sets the function that adds the recorder's context (operator, line) to these events; null: none.
void set_context_provider(void (*fill)(abi::MemoryEvent*));

}  // namespace tonnage::driver
