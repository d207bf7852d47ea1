// Allocates and frees argv[1] times, so that the record grows, then takes 8 GiB.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  if (argc < 2 || cuInit(0) || cuDeviceGet(&device, 0) ||
      cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
    return 9;
  CUdeviceptr blocks[256] = {0};
  srand(1);
  for (long i = atol(argv[1]); i > 0; i--) {
    const int at = rand() % 256;
    if (blocks[at]) {
      cuMemFree(blocks[at]);
      blocks[at] = 0;
    } else if (cuMemAlloc(&blocks[at], (size_t)(rand() % 2000000) + 2200000)) {
      blocks[at] = 0;
    }
  }
  CUdeviceptr large;
  printf("8 GiB: %d\n", cuMemAlloc(&large, 8ull << 30));
  return 0;
}
