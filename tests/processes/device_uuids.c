// Prints the UUIDs of the visible devices, as CUDA_VISIBLE_DEVICES takes them.
#include <cuda.h>
#include <stdio.h>

int main(void) {
  int count = 0;
  if (cuInit(0) || cuDeviceGetCount(&count)) return 9;
  for (int i = 0; i < count; i++) {
    CUuuid uuid;
    if (cuDeviceGetUuid(&uuid, i)) return 9;
    printf("GPU-");
    for (int at = 0; at < 16; at++)
      printf(at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x",
             (unsigned char)uuid.bytes[at]);
    printf("\n");
  }
  return 0;
}
