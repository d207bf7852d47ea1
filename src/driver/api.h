// cuda.h as the driver itself sees it: every version of every entry point declared under its own
// exported name.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
