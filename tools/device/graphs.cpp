// What a driver keeps on the device for executable graphs: instantiates and launches graphs one
// after another and prints each change of free memory. tests/data/graphs/h200.txt has an H200's.
//
//   g++ -O1 -std=c++17 -I$CUDA/include tools/device/graphs.cpp -o graphs -ldl
//   [SMALL=BYTES] [FLAGS=N] ./graphs KIND NODES PARAMETER_BYTES GRAPHS \
//       [keep|destroy] [chain|wide] [STREAMS]
// KIND: kernel, memset or memcpy
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void* library() {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  return handle;
}

// The entry point in the version that this header means.
template <class F>
F entry(const char* name) {
  auto* f = reinterpret_cast<F>(dlsym(library(), name));
  if (!f) {
    std::fprintf(stderr, "graphs: %s is not there\n", name);
    std::exit(1);
  }
  return f;
}
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define CALL(f, ...) check(entry<decltype(&f)>(TEXT(f))(__VA_ARGS__), TEXT(f))

void check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return;
  std::fprintf(stderr, "graphs: %s: error %d\n", what, static_cast<int>(code));
  std::exit(1);
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  CALL(cuMemGetInfo, &free, &total);
  return free;
}

size_t before = 0;
void changed(const char* what, int graph) {
  const size_t now = free_bytes();
  if (now != before)
    std::printf("graph %d %s %+lld\n", graph, what,
                static_cast<long long>(now) - static_cast<long long>(before));
  before = now;
}

std::string source(size_t parameter_bytes) {
  return ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k(.param .align 8 .b8 p[" +
         std::to_string(parameter_bytes) + "]) { ret; }\n";
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5)
    return std::fprintf(stderr,
                        "usage: graphs KIND NODES PARAMETER_BYTES GRAPHS [keep|destroy] "
                        "[chain|wide] [STREAMS]\n"),
           2;
  const std::string kind = arguments[1];
  const int nodes = std::atoi(arguments[2]), graphs = std::atoi(arguments[4]);
  const size_t parameter_bytes = std::strtoul(arguments[3], nullptr, 10);
  const bool destroy = count > 5 && std::string(arguments[5]) == "destroy",
             wide = count > 6 && std::string(arguments[6]) == "wide";

  CUdevice device;
  CUcontext context;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CUmodule module;
  CUfunction kernel;
  CALL(cuModuleLoadData, &module, source(parameter_bytes).c_str());
  CALL(cuModuleGetFunction, &kernel, module, "k");
  std::vector<char> parameters(parameter_bytes);
  void* pointers[] = {parameters.data()};
  CUdeviceptr memory;
  CALL(cuMemAlloc, &memory, 2 << 20);
  CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, nullptr);
  CUstream stream;
  const int streams = count > 7 ? std::atoi(arguments[7]) : 1;
  before = free_bytes();
  for (int i = 0; i < streams; i++) {
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -1);
    changed("stream", i);
  }
  CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, nullptr);
  CALL(cuCtxSynchronize);
  if (const char* bytes = std::getenv("SMALL")) {
    CUdeviceptr small;
    CALL(cuMemAlloc, &small, std::strtoul(bytes, nullptr, 10));
    changed("small allocation", 0);
  }
  const char* flags = std::getenv("FLAGS");  // of the instantiation
  before = free_bytes();
  std::printf("%s, %d nodes, %zu bytes of parameters, %d graphs, %s, %s\n", kind.c_str(), nodes,
              parameter_bytes, graphs, destroy ? "destroyed" : "kept", wide ? "wide" : "chain");
  for (int g = 0; g < graphs; g++) {
    CUgraph graph;
    CUgraphExec exec;
    CALL(cuGraphCreate, &graph, 0);
    CUgraphNode last = nullptr;
    for (int n = 0; n < nodes; n++) {
      CUgraphNode node;
      const CUgraphNode* after = last && !wide ? &last : nullptr;
      if (kind == "kernel") {
        CUDA_KERNEL_NODE_PARAMS p{};
        p.func = kernel;
        p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
        p.kernelParams = pointers;
        CALL(cuGraphAddKernelNode, &node, graph, after, after ? 1 : 0, &p);
      } else if (kind == "memset") {
        CUDA_MEMSET_NODE_PARAMS p{};
        p.dst = memory;
        p.elementSize = 4;
        p.width = 64;
        p.height = 1;
        CALL(cuGraphAddMemsetNode, &node, graph, after, after ? 1 : 0, &p, context);
      } else {
        CUDA_MEMCPY3D p{};
        p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        p.srcDevice = memory;
        p.dstDevice = memory + (1 << 20);
        p.WidthInBytes = 256;
        p.Height = p.Depth = 1;
        CALL(cuGraphAddMemcpyNode, &node, graph, after, after ? 1 : 0, &p, context);
      }
      last = node;
    }
    CALL(cuGraphInstantiateWithFlags, &exec, graph, flags ? std::strtoull(flags, nullptr, 10) : 0);
    changed("instantiated", g);
    CALL(cuGraphLaunch, exec, stream);
    changed("launched", g);
    CALL(cuStreamSynchronize, stream);
    changed("done", g);
    if (destroy) {
      CALL(cuGraphExecDestroy, exec);
      changed("destroyed", g);
    }
    CALL(cuGraphDestroy, graph);
  }
  return 0;
}
