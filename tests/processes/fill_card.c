// Fills the card to its last 2 MiB, then makes streams and a graph: each must be refused, and
// nothing may be in use beyond the card.
#include <cuda.h>
#include <stdio.h>

static void show(const char* what, CUresult result) {
  size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  printf("%s: %d, free %zu\n", what, result, free_bytes);
}

int main(void) {
  CUdevice device;
  CUcontext context;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context))
    return 9;
  size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  CUdeviceptr all, one;
  show("all", cuMemAlloc(&all, free_bytes & ~((2ull << 20) - 1)));
  show("one more", cuMemAlloc(&one, 1));
  CUresult result = CUDA_SUCCESS;
  CUstream streams[200];
  int made = 0;
  while (made < 200 && !(result = cuStreamCreate(&streams[made], CU_STREAM_NON_BLOCKING))) made++;
  show("streams", result);
  cuMemFree(all);
  CUstream stream;
  show("stream after free", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return 0;
}
