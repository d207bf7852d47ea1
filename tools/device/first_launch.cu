// What the first launch of a kernel brings besides its code: room for what printf and assertions say (pinned host memory), the heap
// of device-side malloc, managed memory. Prints after each step how free memory changed, and the host mappings of the driver.
//
//   nvcc -arch=sm_90 -o first_launch first_launch.cu && ./first_launch plain attr_direct direct heap printer managed
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

__managed__ int shared_counter;
__global__ void direct(int* p) { assert(p[0] >= 0); p[1] = 2; }
__global__ void plain(int* p) { p[0] = 1; }
__global__ void printer(int* p) { if (p[0] < -5) printf("%d", p[0]); }
__global__ void heap(int* p) {
  int* q = static_cast<int*>(malloc(64));
  if (q) p[3] = q[0];
  free(q);
}
__global__ void managed(int* p) { p[4] = shared_counter; }

static std::string last_maps;
static size_t last_free;

static void show(const char* what) {
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  std::string maps;
  char line[1024];
  FILE* file = fopen("/proc/self/maps", "r");
  while (file && fgets(line, sizeof line, file)) {
    unsigned long begin = 0, end = 0;
    if (!strstr(line, "zero (deleted)") || sscanf(line, "%lx-%lx", &begin, &end) != 2 || end - begin < 65536) continue;
    maps += " " + std::to_string(end - begin);
  }
  if (file) fclose(file);
  printf("%-14s free %+ld, pinned mappings:%s\n", what, static_cast<long>(free_bytes) - static_cast<long>(last_free), maps == last_maps ? " the same" : maps.c_str());
  last_maps = maps;
  last_free = free_bytes;
}

int main(int count, char** arguments) {
  cudaFree(nullptr);
  show("context");
  int* p = nullptr;
  cudaMalloc(&p, 1 << 20);
  cudaMemset(p, 0, 1 << 20);
  show("allocation");
  for (int i = 1; i < count; i++) {
    const std::string step = arguments[i];
    cudaFuncAttributes attributes;
    if (step == "plain") plain<<<1, 1>>>(p);
    if (step == "direct") direct<<<1, 1>>>(p);
    if (step == "printer") printer<<<1, 1>>>(p);
    if (step == "heap") heap<<<1, 1>>>(p);
    if (step == "managed") managed<<<1, 1>>>(p);
    if (step == "attr_direct") cudaFuncGetAttributes(&attributes, direct);
    if (step == "attr_heap") cudaFuncGetAttributes(&attributes, heap);
    if (const cudaError_t error = cudaDeviceSynchronize()) fprintf(stderr, "%s: %s\n", step.c_str(), cudaGetErrorString(error));
    show(step.c_str());
  }
}
