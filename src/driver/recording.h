// The driver's own events in the record. Every function does nothing outside a session with a record.
#pragma once

#include <cstdint>
#include <string_view>

#include "abi/bridge.h"
#include "abi/event.h"
#include "gpu/block_table.h"

namespace tonnage::driver {

struct Driver;

void start_recording(Driver* driver);
void record_device_alloc(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_device_free(int device, uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_host_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_host_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind);
void record_device_oom(int device, uint64_t requested_bytes, uint64_t free_bytes);
void record_context(int device, uint64_t modelled_bytes);
void record_module_load(int device, uint64_t modelled_bytes, std::string_view name);
void record_unknown_read(int device, uint64_t address, uint64_t bytes);
void record_stub_call(const char* function);
// The blocks of PyTorch's allocator, as far as the recorder tells of them.
gpu::BlockTable& torch_blocks();
// What holds for the process, e.g. the version of its PyTorch.
void record_fact(std::string_view key, std::string_view value);
void record_message(std::string_view text, bool warning);
void record_kernel_counts(Driver* driver);
void stop_recording_in_child();  // after fork: the child has its own stream of chunks

const abi::Bridge* bridge();
// The count that the recorder posted for the next small unknown read on this thread; false: none.
// Taking it clears it.
bool take_posted_read(int64_t* value);
// The recorder accounts for what this kernel writes, launched now: it belongs to an operator, or is
// one of account_for_kernels.
bool accounted_for(std::string_view kernel);
// Bridge::set_upload_policy of this thread.
int upload_policy();

}  // namespace tonnage::driver
