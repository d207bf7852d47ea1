// Asks for argv[1] GiB of pinned host memory; then ends with what it was answered, or with 0 if
// argv[2] is "caught".
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  void* memory = NULL;
  CUdeviceptr small;
  if (argc < 2 || cuInit(0) || cuDeviceGet(&device, 0) ||
      cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
    return 9;
  const CUresult result = cuMemHostAlloc(&memory, (size_t)atoll(argv[1]) << 30, 0);
  printf("pinned: %d\n", result);
  if (argc < 3 || strcmp(argv[2], "caught") != 0) return result;
  return cuMemAlloc(&small, 1 << 20);
}
