// Parts of the device runtime whose first use costs memory.
#include <cassert>
#include <cstdio>
__managed__ int shared_counter;
extern "C" __global__ void uses(float* p) {
  assert(p[0] >= 0);
  printf("%d", shared_counter);
  p[1] = *static_cast<float*>(malloc(100));
}
__device__ __noinline__ float checked(float* p, int i) {
  assert(i < 100);
  return p[i];
}
extern "C" __global__ void through(float* p) { p[2] = checked(p, threadIdx.x); }
extern "C" __global__ void quiet(float* p) { p[3] = 1; }
