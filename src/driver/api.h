// cuda.h for the driver itself: every version of every function, under its exported name.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
