// The text of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF since 2.9) -> the settings that it stands
// for.
#pragma once

#include <string_view>

#include "record/record.h"

namespace tonnage::record {

// "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True".
// Never fails: keys that are unknown or have no sensible value are left at PyTorch's defaults. Keys
// and meaning: PyTorch's CUDA memory management notes; where ">" begins (the bucket after the
// previous key's) as PyTorch has it since 2.7.
AllocatorSettings parse_alloc_conf(std::string_view text);

}  // namespace tonnage::record
