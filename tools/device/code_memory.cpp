// What machine code takes of a device's memory: at its load, when its function is fetched, at the
// first launch.
//
//   code_memory FOLDER-OF-CUBINS      (CUDA_MODULE_LOADING=EAGER or LAZY decides which of these it
//   is)
//
// The cubins are those of code_kernels.py. One line per call that took memory, and the running total.
#include <cuda.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::string folder;
long long total_taken = 0;

size_t free_now() {
  size_t f = 0, t = 0;
  cuMemGetInfo(&f, &t);
  return f;
}

void cost(const std::string& what, const std::function<CUresult()>& f) {
  size_t before = free_now();
  int rc = f();
  long long taken = static_cast<long long>(before) - static_cast<long long>(free_now());
  total_taken += taken;
  if (taken || rc)
    std::printf("%s rc %d took %lld total %lld\n", what.c_str(), rc, taken, total_taken);
}

std::string read(const std::string& name) {
  std::ifstream in(folder + "/" + name + ".cubin", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

CUresult launch(CUfunction f, unsigned grid = 1, unsigned block = 32) {
  void* null = nullptr;
  void* args[] = {&null};
  if (CUresult r = cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, nullptr, args, nullptr)) return r;
  return cuCtxSynchronize();
}

// Loads `copies` of a cubin; of each, fetches and launches k0.
void load(const std::string& name, int copies, int kernels = 1) {
  std::string image = read(name);
  std::printf("module %s image %zu copies %d\n", name.c_str(), image.size(), copies);
  if (image.empty()) return;
  for (int i = 0; i < copies; i++) {
    std::string head = name + " copy " + std::to_string(i);
    CUmodule m = nullptr;
    cost(head + " load", [&] { return cuModuleLoadData(&m, image.data()); });
    for (int k = 0; k < kernels; k++) {
      CUfunction f = nullptr;
      std::string kernel = "k" + std::to_string(k);
      cost(head + " function " + kernel,
           [&] { return cuModuleGetFunction(&f, m, kernel.c_str()); });
      if (i == 0 && k == 0) {
        int local = 0, registers = 0, constant = 0;
        cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
        cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
        cuFuncGetAttribute(&constant, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, f);
        std::printf("%s local %d registers %d constant %d\n", name.c_str(), local, registers,
                    constant);
      }
      cost(head + " launch " + kernel, [&] { return launch(f); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: code_memory FOLDER-OF-CUBINS\n");
    return 2;
  }
  folder = argv[1];
  setvbuf(stdout, nullptr, _IOLBF, 0);
  cuInit(0);
  CUdevice d;
  CUcontext c;
  cuDeviceGet(&d, 0);
  cuDevicePrimaryCtxRetain(&c, d);
  cuCtxSetCurrent(c);
  CUmoduleLoadingMode mode;
  cuModuleGetLoadingMode(&mode);
  std::printf("loading mode %d free %zu\n", static_cast<int>(mode), free_now());
  load("code_1k", 300);
  load("code_16k", 200);
  load("code_128k", 60);
  load("code_1024k", 10);
  load("many_16k", 8, 32);
  for (const char* name : {"data_1", "data_64k", "data_1m", "data_10m"}) load(name, 12);
  load("constant_60k", 40);
  for (const char* name : {"local_1k", "local_4k", "local_16k", "local_64k", "local_256k",
                           "local_4k", "printf", "assert", "malloc"})
    load(name, 1);
  CUdeviceptr p;
  cost("allocation after code", [&] { return cuMemAlloc(&p, 2 << 20); });
  std::printf("address %llx\n", static_cast<unsigned long long>(p));
}
