// Parts of the device runtime whose first use costs memory.
#include <cassert>
#include <cstdio>
__managed__ int shared_counter;
extern "C" __global__ void uses(float* p) {
  assert(p[0] >= 0);
  printf("%d", shared_counter);
  p[1] = *static_cast<float*>(malloc(100));
}
