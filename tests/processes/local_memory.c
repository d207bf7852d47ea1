// Launches two kernels whose threads have 8 KiB and 64 KiB of local memory.
#include <cuda.h>
#include <stdio.h>

#define KERNEL(name, bytes)                                    \
  ".visible .entry " name "()\n{\n"                            \
  "  .local .align 8 .b8 __local_depot0[" bytes "];\n  ret;\n}\n"

static const char* const ptx = ".version 7.8\n.target sm_80\n.address_size 64\n" KERNEL(
    "small_stack", "8192") KERNEL("large_stack", "65536");

int main(void) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction function;
  const char* names[] = {"small_stack", "large_stack"};
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context) || cuModuleLoadData(&module, ptx))
    return 9;
  for (int i = 0; i < 2; i++) {
    const CUresult found = cuModuleGetFunction(&function, module, names[i]);
    const CUresult launched =
        found ? found : cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    printf("%s: %d\n", names[i], launched);
  }
  return 0;
}
