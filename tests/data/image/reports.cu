// A function that asserts, reached only through a table.
#include <cassert>
__device__ __noinline__ void checked(float* p) { assert(p[0] > 0); }
__device__ __noinline__ void plain(float* p) { p[0] *= 2; }
__device__ void (*table[2])(float*) = {checked, plain};
extern "C" __global__ void through_table(float* p, int which) { table[which](p); }
extern "C" __global__ void alone(float* p) { p[3] = 1; }
