// Takes argv[1] GiB and holds them for argv[2] seconds; then ends by return, or by the signal
// argv[3] ("_exit": by _exit).
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  CUdeviceptr address;
  if (argc < 3 || cuInit(0) || cuDeviceGet(&device, 0)) return 9;
  const CUresult made = cuDevicePrimaryCtxRetain(&context, device);
  if (made) {
    printf("no context: %d\n", made);
    return 2;
  }
  cuCtxSetCurrent(context);
  const CUresult result = cuMemAlloc(&address, (size_t)atoi(argv[1]) << 30);
  size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  printf("%s GiB: %s, in use %zu of %zu MiB\n", argv[1], result ? "refused" : "served",
         (total - free_bytes) >> 20, total >> 20);
  fflush(stdout);
  sleep((unsigned)atoi(argv[2]));
  if (argc > 3 && strcmp(argv[3], "_exit") == 0) _exit(3);
  if (argc > 3) raise(atoi(argv[3]));
  return result ? 1 : 0;
}
