// The bridge between the driver and the recorder (src/recorder) that it loaded: what the driver
// gives to the recorder, and what the recorder has told the driver. The virtual driver and the
// pass-through driver share it.
#pragma once

#include <cstdint>
#include <string_view>

#include "abi/bridge.h"
#include "abi/session.h"
#include "gpu/block_table.h"
#include "gpu/shadow_memory.h"

namespace tonnage::driver {

// `content` is the shadow memory of the device; null: nothing is known (a real card). `at_step` is
// called at the end of each training step; may be null.
void start_bridge(abi::Session* session, gpu::ShadowMemory* content, void (*at_step)());
const abi::Bridge* bridge();

// The blocks of PyTorch's allocator that the recorder has reported.
gpu::BlockTable& torch_blocks();
// The count that the recorder posted for the next small unknown read on this thread; false: none.
// Taking it clears it.
bool take_posted_read(int64_t* value);
// The recorder accounts for what this kernel writes, launched now: it belongs to an operator, or is
// one of account_for_kernels.
bool accounted_for(std::string_view kernel);
// Bridge::set_upload_policy of this thread.
int upload_policy();

}  // namespace tonnage::driver
