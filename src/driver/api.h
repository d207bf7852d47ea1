// cuda.h as the driver itself sees it: every version of every entry point declared under its own
// exported name.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

// Exported C functions: the only symbols of libcuda.so.1.
#define VGPU_API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI
