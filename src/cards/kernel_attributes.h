// What cuFuncGetAttribute and cuKernelGetAttribute answer: the machine code's own figures, what the
// device makes of them, and what the program set.
#pragma once

#include "abi/session.h"
#include "image/cubin.h"

namespace tonnage::cards {

// What cuFuncSetAttribute, cuKernelSetAttribute and cuFuncSetCacheConfig changed, per kernel and
// device.
struct KernelSettings {
  int32_t max_dynamic_shared_bytes = -1;  // -1: never set
  int32_t carveout_percent = -1;  // shared memory's part of the cache; -1: the driver's choice
  int32_t cluster[3] = {};        // required cluster; 0: not set
  int32_t non_portable_cluster = 0;
  int32_t scheduling_policy = 0;
  int32_t cache_config = 0;  // CUfunc_cache
};

// A kernel as occupancy looks at it.
struct KernelAttributes {
  int32_t registers = 0;
  int32_t static_shared_bytes = 0;
  int32_t local_bytes = 0;
  int32_t const_bytes = 0;
  int32_t ptx_version = 0, binary_version = 0;
  int32_t max_threads = 0;               // largest block that the device can start
  int32_t max_dynamic_shared_bytes = 0;  // largest dynamic shared memory that a launch may ask
  bool dynamic_shared_set = false;
  int32_t carveout_percent = -1;
  int32_t cache_config = 0;
  int32_t barriers = 0;
  int32_t required_cluster[3] = {};
  bool cluster_must_be_set = false;
  bool non_portable_cluster = false;
  int32_t scheduling_policy = 0;
};

KernelAttributes resolve(const image::KernelInfo& kernel, const KernelSettings& settings,
                         const abi::CardDesc& card);

// The largest block for which a kernel of this many registers per thread can start: a whole number
// of warps on each of the four partitions of an SM.
int max_threads_for_registers(int registers, const abi::CardDesc& card);

// By CUfunction_attribute number. Returns a CUresult: 0, or 1 (invalid value) for a number that is
// not an attribute.
int get_kernel_attribute(const KernelAttributes& kernel, int attribute, int* value);

// 0, or 1 (invalid value) for a value out of range, an attribute that cannot be set, or another
// cluster than the code fixed; as an H200's driver 580 answers.
int set_kernel_attribute(const image::KernelInfo& kernel, KernelSettings* settings,
                         const abi::CardDesc& card, int attribute, int value);

}  // namespace tonnage::cards
