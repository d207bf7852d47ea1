// What a real driver answers: attributes, limits, pointers, pools, entry points by version, and the
// error of each kind of bad call. One line an answer on standard output, for the virtual driver to
// be compared with.
//
//   answers SECTION     device memory pointers errors graphs resources, sticky 0..5, proc NAMES-FILE
#include <cuda.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

using Size = unsigned long long;
constexpr size_t kMiB = 1 << 20;

// A call that crashes says so, and the rest goes on.
#define T(CALL) TV(CALL, "%s", "")
// The call's code and a value of its answer.
#define TV(CALL, FORMAT, VALUE)                                     \
  do {                                                              \
    if (sigsetjmp(crash_return, 1) == 0) {                          \
      int rc_ = static_cast<int>(CALL);                             \
      std::printf("rc %-4d %s -> " FORMAT "\n", rc_, #CALL, VALUE); \
    } else                                                          \
      std::printf("crash   %s\n", #CALL);                           \
  } while (0)

sigjmp_buf crash_return;
void on_crash(int) { siglongjmp(crash_return, 1); }

CUdevice device;
CUcontext context;

size_t free_now() {
  size_t f = 0, t = 0;
  cuMemGetInfo(&f, &t);
  return f;
}

// Runs f and prints what it took of free memory.
void cost(const char* what, const std::function<void()>& f) {
  size_t before = free_now();
  f();
  std::printf("cost %s %lld\n", what,
              static_cast<long long>(before) - static_cast<long long>(free_now()));
}

void start() {
  cuInit(0);
  cuDeviceGet(&device, 0);
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxSetCurrent(context);
}

void nvml_memory(const char* when) {
  struct Memory {
    Size total, free, used;
  } m{};
  struct MemoryV2 {
    unsigned version;
    Size total, reserved, free, used;
  } m2{};
  static void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!lib) {
    std::printf("nvml missing\n");
    return;
  }
  auto init = reinterpret_cast<int (*)()>(dlsym(lib, "nvmlInit_v2"));
  auto handle =
      reinterpret_cast<int (*)(unsigned, void**)>(dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"));
  auto info = reinterpret_cast<int (*)(void*, Memory*)>(dlsym(lib, "nvmlDeviceGetMemoryInfo"));
  auto info2 =
      reinterpret_cast<int (*)(void*, MemoryV2*)>(dlsym(lib, "nvmlDeviceGetMemoryInfo_v2"));
  void* d = nullptr;
  init();
  handle(0, &d);
  int rc = info(d, &m);
  std::printf("nvml %s rc %d total %llu free %llu used %llu\n", when, rc, m.total, m.free, m.used);
  m2.version = sizeof m2 | 2u << 24;
  rc = info2(d, &m2);
  std::printf("nvml2 %s rc %d total %llu reserved %llu free %llu used %llu\n", when, rc, m2.total,
              m2.reserved, m2.free, m2.used);
}

void section_device() {
  int n = 0;
  CUdevice d;
  T(cuDeviceGet(&d, 0));
  TV(cuDeviceGetCount(&n), "%d", n);
  int version = 0;
  TV(cuDriverGetVersion(&version), "%d", version);
  CUcontext c = nullptr;
  TV(cuCtxGetCurrent(&c), "%p", static_cast<void*>(c));
  T(cuInit(1));
  nvml_memory("before cuInit");
  T(cuInit(0));
  TV(cuDeviceGetCount(&n), "%d", n);
  T(cuDeviceGet(&d, -1));
  T(cuDeviceGet(&d, n));
  T(cuDeviceGet(nullptr, 0));
  TV(cuCtxGetCurrent(&c), "%p", static_cast<void*>(c));
  T(cuCtxGetDevice(&d));
  size_t f = 0, t = 0;
  T(cuMemGetInfo(&f, &t));
  CUdeviceptr p;
  T(cuMemAlloc(&p, 100));
  T(cuCtxSynchronize());
  CUstream s;
  T(cuStreamCreate(&s, 0));
  CUcontext popped;
  T(cuCtxPopCurrent(&popped));
  unsigned flags = 0;
  int active = 0;
  TV(cuDevicePrimaryCtxGetState(0, &flags, &active), "active %d", active);
  T(cuDevicePrimaryCtxRelease(0));
  T(cuDevicePrimaryCtxReset(0));
  nvml_memory("after cuInit");
  start();
  nvml_memory("after context");
  TV(cuMemGetInfo(&f, &t), "free %zu", f);
  std::printf("total %zu\n", t);
  TV(cuDeviceTotalMem(&t, 0), "%zu", t);
  TV(cuDevicePrimaryCtxGetState(0, &flags, &active), "active %d", active);
  T(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
  TV(cuDevicePrimaryCtxGetState(0, &flags, &active), "flags %u", flags);
  T(cuDevicePrimaryCtxSetFlags(0, 0));
  TV(cuCtxGetFlags(&flags), "%u", flags);
  char name[256] = "";
  TV(cuDeviceGetName(name, 256, 0), "%s", name);
  char small[5] = "";
  TV(cuDeviceGetName(small, 5, 0), "%.5s", small);
  TV(cuDeviceGetPCIBusId(name, 256, 0), "%s", name);
  TV(cuDeviceGetPCIBusId(small, 5, 0), "%.5s", small);
  TV(cuDeviceGetByPCIBusId(&d, name), "%d", d);
  T(cuDeviceGetByPCIBusId(&d, "0000:ff:1f.0"));
  CUuuid uuid;
  T(cuDeviceGetUuid(&uuid, 0));
  for (int a = 0; a < 200; a++) {
    int v = -12345;
    int rc = cuDeviceGetAttribute(&v, static_cast<CUdevice_attribute>(a), 0);
    std::printf("device attribute %d rc %d %d\n", a, rc, v);
  }
  for (int a = 0; a < 16; a++) {
    size_t v = 0;
    int rc = cuCtxGetLimit(&v, static_cast<CUlimit>(a));
    std::printf("limit %d rc %d %zu\n", a, rc, v);
  }
  int low = 9, high = 9;
  cuCtxGetStreamPriorityRange(&low, &high);
  std::printf("priorities %d %d\n", low, high);
  CUfunc_cache cache;
  TV(cuCtxGetCacheConfig(&cache), "%d", static_cast<int>(cache));
  unsigned api = 0;
  TV(cuCtxGetApiVersion(context, &api), "%u", api);
  unsigned long long id = 0;
  TV(cuCtxGetId(context, &id), "%llu", id);
  int can = -1;
  TV(cuDeviceCanAccessPeer(&can, 0, 0), "%d", can);
  for (int a = 0; a <= 4; a++)
    TV(cuDeviceGetP2PAttribute(&can, static_cast<CUdevice_P2PAttribute>(a), 0, 0), "%d", can);
  T(cuCtxEnablePeerAccess(context, 0));
  size_t width = 0;
  for (int format : {1, 8, 0x10, 0x20})
    TV(cuDeviceGetTexture1DLinearMaxWidth(&width, static_cast<CUarray_format>(format), 1, 0), "%zu",
       width);
  for (int a = 0; a < 2; a++)
    TV(cuDeviceGetExecAffinitySupport(&can, static_cast<CUexecAffinityType>(a), 0), "%d", can);
  for (int e = 0; e < 1000; e++) {
    const char *en = nullptr, *es = nullptr;
    if (cuGetErrorName(static_cast<CUresult>(e), &en) == CUDA_SUCCESS &&
        cuGetErrorString(static_cast<CUresult>(e), &es) == CUDA_SUCCESS)
      std::printf("error %d %s: %s\n", e, en, es);
  }
  const char* en = reinterpret_cast<const char*>(1);
  TV(cuGetErrorName(static_cast<CUresult>(12345), &en), "%p", static_cast<const void*>(en));
  for (int k = 0; k < 6; k++) {  // contexts beside the primary one
    CUcontext extra;
    cost("cuCtxCreate", [&] { std::printf("rc %d\n", cuCtxCreate(&extra, nullptr, 0, 0)); });
  }
  nvml_memory("after six more contexts");
}

void print_pool(const char* what, CUmemoryPool pool) {
  for (int a = 1; a <= 14; a++) {
    uint64_t v = 0;
    int rc = cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(a), &v);
    std::printf("pool %s attribute %d rc %d %llu\n", what, a, rc, static_cast<Size>(v));
  }
}

void section_memory() {
  start();
  CUmemoryPool pool;
  T(cuDeviceGetDefaultMemPool(&pool, 0));
  print_pool("default", pool);
  CUmemoryPool current;
  TV(cuDeviceGetMemPool(&current, 0), "same %d", current == pool);
  CUdeviceptr p[16] = {};
  CUstream s;
  cuStreamCreate(&s, 0);
  cost("first async 1 MiB", [&] { T(cuMemAllocAsync(&p[0], kMiB, s)); });
  print_pool("after 1 MiB", pool);
  for (size_t n : {kMiB, 16 * kMiB, 20 * kMiB, 33 * kMiB, 100 * kMiB, kMiB * 3 / 2}) {
    CUdeviceptr q;
    std::printf("async %zu\n", n);
    cost("async", [&] { TV(cuMemAllocAsync(&q, n, s), "%llx", static_cast<Size>(q)); });
    print_pool("now", pool);
    cost("async free", [&] { T(cuMemFreeAsync(q, s)); });
    print_pool("freed", pool);
  }
  cost("synchronize", [&] { T(cuStreamSynchronize(s)); });
  print_pool("synchronized", pool);
  cost("trim to 0", [&] { T(cuMemPoolTrimTo(pool, 0)); });
  print_pool("trimmed", pool);
  T(cuMemFree(p[0]));  // of a pool
  uint64_t threshold = ~0ull;
  T(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  for (int i = 0; i < 5; i++)
    cost("async 40 MiB kept", [&] { cuMemAllocAsync(&p[i], 40 * kMiB, s); });
  for (int i = 0; i < 5; i++) cuMemFreeAsync(p[i], s);
  cost("synchronize kept", [&] { cuStreamSynchronize(s); });
  print_pool("kept", pool);
  cost("trim to 50 MiB", [&] { cuMemPoolTrimTo(pool, 50 * kMiB); });
  print_pool("trimmed to 50 MiB", pool);
  uint64_t zero = 0, one = 1;
  T(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  T(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
  T(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool own;
  T(cuMemPoolCreate(&own, &props));
  print_pool("own", own);
  T(cuMemAllocFromPoolAsync(&p[0], 3 * kMiB, own, s));
  print_pool("own 3 MiB", own);
  T(cuMemPoolDestroy(own));
  T(cuMemFreeAsync(p[0], s));
  T(cuMemPoolDestroy(pool));
  T(cuMemAllocAsync(&p[0], 0, s));
  T(cuMemAllocAsync(nullptr, 5, s));
  T(cuMemAllocAsync(&p[0], size_t{1} << 50, s));
  T(cuMemFreeAsync(0, s));
  T(cuMemFreeAsync(12345, s));
  for (int type : {0, 1, 2, 3, 4, 5})
    for (int alloc : {0, 1, 2})
      for (int handle : {0, 1, 8}) {
        CUmemAllocationProp a{};
        a.type = static_cast<CUmemAllocationType>(alloc);
        a.location = {static_cast<CUmemLocationType>(type), {0}};
        a.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle);
        size_t low = 0, best = 0;
        int r0 = cuMemGetAllocationGranularity(&low, &a, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            r1 = cuMemGetAllocationGranularity(&best, &a, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        std::printf("granularity location %d type %d handle %d rc %d %zu rc %d %zu\n", type, alloc,
                    handle, r0, low, r1, best);
      }
  // Sizes: what plain allocations of each size take, twenty of a kind.
  for (size_t n : {size_t{1}, size_t{256}, size_t{512}, size_t{513}, size_t{4096}, size_t{65536},
                   size_t{65537}, 512 * size_t{1024}, kMiB, kMiB + 1, 2 * kMiB - 1, 2 * kMiB,
                   2 * kMiB + 1, 3 * kMiB}) {
    std::vector<CUdeviceptr> q(20);
    for (auto& x : q) {
      std::printf("size %zu ", n);
      cost("plain", [&] { cuMemAlloc(&x, n); });
    }
    std::printf("spacing");
    for (auto& x : q) std::printf(" %llx", static_cast<Size>(x));
    std::printf("\n");
    cost("plain freed", [&] {
      for (auto& x : q) cuMemFree(x);
    });
  }
  size_t pitch = 0;
  for (size_t width : {1, 100, 512, 513, 4000, 100000})
    for (unsigned element : {4u, 8u, 16u})
      TV(cuMemAllocPitch(&p[0], &pitch, width, 7, element), "pitch %zu", pitch);
  T(cuMemAllocPitch(&p[0], &pitch, 100, 7, 5));
  T(cuMemAllocPitch(&p[0], &pitch, 0, 7, 4));
  for (int format : {1, 2, 3, 8, 9, 10, 0x10, 0x20})
    for (unsigned channels : {1u, 2u, 4u})
      for (size_t h : {size_t{0}, size_t{1}, size_t{100}, size_t{2000}}) {
        CUDA_ARRAY_DESCRIPTOR d{1000, h, static_cast<CUarray_format>(format), channels};
        CUarray a;
        std::printf("array format %d channels %u height %zu ", format, channels, h);
        cost("array", [&] { std::printf("rc %d ", cuArrayCreate(&a, &d)); });
      }
  for (size_t n : {size_t{1}, size_t{4096}, kMiB, 3 * kMiB, 32 * kMiB}) {
    void* h;
    std::printf("%zu ", n);
    cost("host", [&] { TV(cuMemHostAlloc(&h, n, 0), "%p", h); });
    std::printf("%zu ", n);
    cost("managed", [&] {
      CUdeviceptr q;
      cuMemAllocManaged(&q, n, CU_MEM_ATTACH_GLOBAL);
    });
  }
}

void pointer(const char* what, CUdeviceptr p) {
  for (int a = 1; a <= 24; a++) {
    alignas(16) unsigned char v[64];
    memset(v, 0xee, sizeof v);
    int rc = cuPointerGetAttribute(v, static_cast<CUpointer_attribute>(a), p);
    Size x;
    memcpy(&x, v, 8);
    std::printf("pointer %s attribute %d rc %d %llx\n", what, a, rc, x);
  }
  CUdeviceptr base = 0;
  size_t n = 0;
  int rc = cuMemGetAddressRange(&base, &n, p);
  std::printf("pointer %s %llx range rc %d base %llx size %zu\n", what, static_cast<Size>(p), rc,
              static_cast<Size>(base), n);
  unsigned type = 77;
  int ordinal = -77;
  CUcontext c = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* out[] = {&type, &ordinal, &c};
  rc = cuPointerGetAttributes(3, which, out, p);
  std::printf("pointer %s attributes rc %d type %u ordinal %d context %s\n", what, rc, type,
              ordinal,
              c == context ? "primary"
              : c          ? "other"
                           : "null");
  CUipcMemHandle h;
  std::printf("pointer %s ipc rc %d\n", what, cuIpcGetMemHandle(&h, p));
  unsigned flags = 77;
  rc = cuMemHostGetFlags(&flags, reinterpret_cast<void*>(p));
  std::printf("pointer %s host flags rc %d %u\n", what, rc, flags);
  CUdeviceptr dp = 0;
  rc = cuMemHostGetDevicePointer(&dp, reinterpret_cast<void*>(p), 0);
  std::printf("pointer %s host device pointer rc %d %llx\n", what, rc, static_cast<Size>(dp));
}

void section_pointers() {
  start();
  CUdeviceptr p = 0, small = 0, async = 0, managed = 0, freed = 0, va = 0, hole = 0;
  cuMemAlloc(&p, 5 * kMiB + 7);
  cuMemAlloc(&small, 1000);
  CUstream s;
  cuStreamCreate(&s, 0);
  cuMemAllocAsync(&async, 3 * kMiB, s);
  cuMemAllocManaged(&managed, 3 * kMiB, CU_MEM_ATTACH_GLOBAL);
  cuMemAlloc(&freed, 64 * kMiB);
  cuMemFree(freed);
  CUmemAllocationProp a{};
  a.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  a.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle h;
  cuMemCreate(&h, 4 * kMiB, &a, 0);
  cuMemAddressReserve(&va, 16 * kMiB, 0, 0, 0);
  cuMemMap(va, 4 * kMiB, 0, h, 0);
  hole = va + 4 * kMiB;
  void *host, *portable, *registered = aligned_alloc(4096, kMiB), *plain = malloc(kMiB);
  cuMemHostAlloc(&host, kMiB, 0);
  cuMemHostAlloc(&portable, kMiB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  T(cuMemHostRegister(registered, kMiB, 0));
  auto address = [](void* x) { return reinterpret_cast<CUdeviceptr>(x); };
  pointer("plain", p);
  pointer("plain+1000", p + 1000);
  pointer("plain at its end", p + 5 * kMiB + 7);
  pointer("small", small);
  pointer("small+900", small + 900);
  pointer("async", async);
  pointer("managed", managed);
  pointer("freed", freed);
  pointer("mapped without access", va);
  CUmemAccessDesc access{a.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  T(cuMemSetAccess(va, 4 * kMiB, &access, 1));
  pointer("mapped", va);
  pointer("mapped+3MiB", va + 3 * kMiB);
  pointer("reserved hole", hole);
  pointer("host", address(host));
  pointer("host portable", address(portable));
  pointer("registered", address(registered));
  pointer("heap", address(plain));
  pointer("null", 0);
  int flag = 1;
  T(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
  T(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address(plain)));
}

void section_errors() {
  start();
  CUdeviceptr p = 0, q = 0;
  T(cuMemAlloc(&p, 0));
  T(cuMemAlloc(nullptr, 10));
  T(cuMemAlloc(&p, size_t{1} << 50));
  T(cuMemAlloc(&p, ~size_t{0}));
  T(cuMemAlloc(&p, 4 * kMiB));
  T(cuMemFree(0));
  T(cuMemFree(12345));
  T(cuMemFree(p + 256));
  T(cuMemFree(p));
  T(cuMemFree(p));
  T(cuMemAlloc(&p, 4 * kMiB));
  T(cuMemAlloc(&q, 4 * kMiB));
  std::vector<char> host(16 * kMiB);
  T(cuMemcpyHtoD(p, host.data(), 4 * kMiB));
  T(cuMemcpyHtoD(p, host.data(), 4 * kMiB + 1));
  T(cuMemcpyHtoD(p, host.data(), 0));
  T(cuMemcpyHtoD(p, nullptr, 4));
  T(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(host.data()), host.data() + kMiB, 4));
  T(cuMemcpyDtoH(host.data(), p, 4 * kMiB + 1));
  T(cuMemcpyDtoH(host.data(), 0, 4));
  T(cuMemcpyDtoD(p, q, 4 * kMiB + 1));
  T(cuMemcpyDtoD(p, p + 16, 64));
  T(cuMemcpy(p, reinterpret_cast<CUdeviceptr>(host.data()), 100));
  T(cuMemcpyDtoDAsync(p, q, 5 * kMiB, nullptr));
  T(cuCtxSynchronize());
  T(cuMemsetD8(p, 1, 4 * kMiB));
  T(cuMemsetD8(p, 1, 4 * kMiB + 1));
  T(cuMemsetD32(p + 1, 1, 1));
  T(cuMemsetD32(0, 1, 1));
  T(cuMemsetD2D8(p, 100, 1, 200, 2));
  CUmemAllocationProp a{};
  a.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  a.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle h = 0, h2 = 0;
  CUdeviceptr va = 0, vb = 0;
  T(cuMemAddressReserve(&va, kMiB, 0, 0, 0));
  T(cuMemAddressReserve(&va, 0, 0, 0, 0));
  T(cuMemAddressReserve(&va, 2 * kMiB, 3, 0, 0));
  T(cuMemAddressReserve(&va, 2 * kMiB, 0, 0, 1));
  TV(cuMemAddressReserve(&va, 16 * kMiB, 0, 0, 0), "%llx", static_cast<Size>(va));
  TV(cuMemAddressReserve(&vb, 16 * kMiB, 0, va, 0), "hint taken %d", va == vb);
  T(cuMemAddressFree(vb, 16 * kMiB));
  TV(cuMemAddressReserve(&vb, 16 * kMiB, size_t{1} << 30, 0, 0), "%llx", static_cast<Size>(vb));
  T(cuMemCreate(&h, kMiB, &a, 0));
  T(cuMemCreate(&h, 0, &a, 0));
  T(cuMemCreate(&h, size_t{1} << 50, &a, 0));
  T(cuMemCreate(&h, 4 * kMiB, &a, 1));
  a.location.id = 99;
  T(cuMemCreate(&h, 4 * kMiB, &a, 0));
  a.location.id = 0;
  T(cuMemCreate(&h, 4 * kMiB, &a, 0));
  T(cuMemCreate(&h2, 2 * kMiB, &a, 0));
  T(cuMemMap(va, 2 * kMiB, 0, h, 0));
  T(cuMemMap(va, 4 * kMiB, 2 * kMiB, h, 0));
  T(cuMemMap(va + kMiB, 4 * kMiB, 0, h, 0));
  T(cuMemMap(va, 8 * kMiB, 0, h, 0));
  T(cuMemMap(12345, 4 * kMiB, 0, h, 0));
  T(cuMemMap(va, 4 * kMiB, 0, 777, 0));
  T(cuMemUnmap(va, 4 * kMiB));
  T(cuMemMap(va, 4 * kMiB, 0, h, 0));
  T(cuMemMap(va + 2 * kMiB, 2 * kMiB, 0, h2, 0));
  T(cuMemMap(va + 4 * kMiB, 2 * kMiB, 0, h2, 0));
  T(cuMemMap(va + 8 * kMiB, 4 * kMiB, 0, h, 0));  // the same memory twice
  CUmemAccessDesc access{a.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  T(cuMemSetAccess(va, kMiB, &access, 1));
  T(cuMemSetAccess(va, 8 * kMiB, &access, 1));
  T(cuMemSetAccess(va, 6 * kMiB, &access, 1));
  unsigned long long fl = 0;
  TV(cuMemGetAccess(&fl, &a.location, va), "%llu", fl);
  T(cuMemcpyDtoH(host.data(), va, 6 * kMiB));
  T(cuMemUnmap(va, 2 * kMiB));
  T(cuMemUnmap(va, 6 * kMiB));
  T(cuMemUnmap(va, 6 * kMiB));
  cost("release mapped", [&] { T(cuMemRelease(h)); });
  cost("unmap released", [&] { T(cuMemUnmap(va + 8 * kMiB, 4 * kMiB)); });
  T(cuMemRelease(h));
  T(cuMemRelease(12345));
  T(cuMemMap(va, 2 * kMiB, 0, h2, 0));
  T(cuMemAddressFree(va, 16 * kMiB));
  T(cuMemFree(va));
  CUmemGenericAllocationHandle h3 = 0;
  TV(cuMemRetainAllocationHandle(&h3, reinterpret_cast<void*>(va)), "same %d", h3 == h2);
  T(cuMemRetainAllocationHandle(&h3, reinterpret_cast<void*>(p)));
  CUmemAllocationProp got{};
  TV(cuMemGetAllocationPropertiesFromHandle(&got, h2), "%d", static_cast<int>(got.type));
  int fd = -1;
  T(cuMemExportToShareableHandle(&fd, h2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  a.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  T(cuMemCreate(&h, 2 * kMiB, &a, 0));
  TV(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
     "fd given %d", fd >= 0);
  T(cuMemImportFromShareableHandle(&h3, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  T(cuMemUnmap(va, 2 * kMiB));
  T(cuMemAddressFree(va, 8 * kMiB));
  T(cuMemAddressFree(va, 16 * kMiB));
  T(cuMemAddressFree(12345, kMiB));
  void* hp = nullptr;
  T(cuMemHostAlloc(&hp, 0, 0));
  T(cuMemHostAlloc(&hp, 100, 0x100));
  T(cuMemHostAlloc(nullptr, 100, 0));
  T(cuMemAllocHost(&hp, 100));
  T(cuMemFreeHost(nullptr));
  T(cuMemFreeHost(host.data()));
  T(cuMemFreeHost(hp));
  T(cuMemHostRegister(host.data() + 1, 100, 0));
  T(cuMemHostRegister(host.data(), 100, 0));
  T(cuMemHostRegister(nullptr, 100, 0));
  T(cuMemHostRegister(host.data(), 0, 0));
  T(cuMemHostUnregister(host.data()));
  T(cuMemHostUnregister(host.data() + 1));
  T(cuMemHostUnregister(host.data() + 100000));
  T(cuMemAllocManaged(&q, 0, CU_MEM_ATTACH_GLOBAL));
  T(cuMemAllocManaged(&q, 4096, 0));
  T(cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_GLOBAL));
  T(cuMemFree(q));
  CUmodule m;
  CUfunction f = nullptr;
  T(cuModuleLoadData(&m, "garbage"));
  T(cuModuleLoadData(&m, nullptr));
  T(cuModuleLoadData(&m, ".version 9.0\n.target sm_90\n.address_size 64\nnonsense\n"));
  const char* ptx =
      ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 table[100];\n"
      ".visible .entry k(.param .u64 p){ret;}\n.visible .entry big(){.shared .align 4 .b8 "
      "s[40000]; .local .align 4 .b8 l[4096]; ret;}\n";
  T(cuModuleLoadData(&m, ptx));
  T(cuModuleGetFunction(&f, m, "missing"));
  T(cuModuleGetFunction(&f, m, "k"));
  size_t n = 0;
  TV(cuModuleGetGlobal(&q, &n, m, "table"), "%zu", n);
  T(cuModuleGetGlobal(&q, &n, m, "missing"));
  for (int i = 0; i < 17; i++) {
    int v = -12345;
    int rc = cuFuncGetAttribute(&v, static_cast<CUfunction_attribute>(i), f);
    std::printf("function attribute %d rc %d %d\n", i, rc, v);
  }
  CUdeviceptr arg = p;
  void* args[] = {&arg};
  T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 1, 1, 0, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 0x80000000u, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, nullptr, args, nullptr));
  T(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
  T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  T(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
  T(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
  T(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  T(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
  T(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS, 10));
  int blocks = 0, grid = 0;
  for (int threads : {1, 32, 33, 64, 128, 256, 512, 1024, 1025, 0, -1})
    for (size_t shared :
         {size_t{0}, size_t{1000}, size_t{49152}, size_t{100000}, size_t{232448}, size_t{232449}}) {
      int rc = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, threads, shared);
      std::printf("occupancy threads %d shared %zu rc %d %d\n", threads, shared, rc, blocks);
    }
  int rc = cuOccupancyMaxPotentialBlockSize(&grid, &blocks, f, nullptr, 0, 0);
  std::printf("potential block size rc %d grid %d block %d\n", rc, grid, blocks);
  T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, nullptr, args, nullptr));
  T(cuModuleUnload(m));
  CUlibrary lib;
  CUkernel kernel;
  T(cuLibraryLoadData(&lib, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  T(cuLibraryGetKernel(&kernel, lib, "missing"));
  T(cuLibraryGetKernel(&kernel, lib, "k"));
  unsigned count = 0;
  TV(cuLibraryGetKernelCount(&count, lib), "%u", count);
  TV(cuLibraryGetGlobal(&q, &n, lib, "table"), "%zu", n);
  T(cuLibraryGetManaged(&q, &n, lib, "table"));
  T(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, args,
                   nullptr));
  T(cuLibraryUnload(lib));
  CUevent e, e2;
  float ms = 0;
  T(cuEventCreate(&e, 0x100));
  T(cuEventCreate(&e, CU_EVENT_INTERPROCESS));
  T(cuEventCreate(&e, 0));
  T(cuEventQuery(e));
  T(cuEventSynchronize(e));
  T(cuEventElapsedTime(&ms, e, e));
  T(cuEventCreate(&e2, CU_EVENT_DISABLE_TIMING));
  T(cuEventRecord(e, nullptr));
  T(cuEventRecord(e2, nullptr));
  T(cuEventElapsedTime(&ms, e, e2));
  T(cuEventDestroy(nullptr));
  CUstream s;
  T(cuStreamCreate(&s, 5));
  T(cuStreamCreate(&s, 1));
  T(cuStreamCreateWithPriority(&s, 1, -100));
  int priority = 99;
  TV(cuStreamGetPriority(s, &priority), "%d", priority);
  T(cuStreamDestroy(nullptr));
  T(cuStreamQuery(s));
  T(cuStreamQuery(nullptr));
  T(cuStreamWaitEvent(s, e, 0));
  T(cuStreamWaitEvent(s, nullptr, 0));
  T(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 100000000));
  T(cuCtxSetLimit(static_cast<CUlimit>(99), 1));
  CUcontext c;
  T(cuCtxPushCurrent(nullptr));
  T(cuCtxSetCurrent(nullptr));
  T(cuMemAlloc(&p, 10));
  T(cuMemGetInfo(&n, &n));
  T(cuCtxSetCurrent(context));
  T(cuCtxPopCurrent(&c));
  T(cuCtxPopCurrent(&c));
  T(cuCtxPushCurrent(context));
  T(cuCtxDestroy(context));
  cost("reset", [&] { T(cuDevicePrimaryCtxReset(0)); });
  T(cuMemFree(p));
  T(cuMemAlloc(&p, 10));
  T(cuDevicePrimaryCtxRelease(0));
  T(cuDevicePrimaryCtxRelease(0));
  T(cuDevicePrimaryCtxRelease(0));
  T(cuMemAlloc(&p, 10));
}

// What may leave the context unusable: one case a process.
void section_sticky(int which) {
  start();
  CUdeviceptr va = 0;
  CUmemAllocationProp a{};
  a.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  a.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle h = 0;
  CUmemAccessDesc access{a.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  static char host[16 * kMiB];
  cuMemAddressReserve(&va, 16 * kMiB, 0, 0, 0);
  cuMemCreate(&h, 4 * kMiB, &a, 0);
  cuMemMap(va, 4 * kMiB, 0, h, 0);
  if (which == 0) T(cuMemcpyDtoH(host, va, 4));  // without access
  if (which > 0) T(cuMemSetAccess(va, 4 * kMiB, &access, 1));
  if (which == 1) T(cuMemcpyDtoH(host, va, 7 * kMiB));  // past what is mapped
  if (which == 2) T(cuMemcpyDtoH(host, va + 8 * kMiB, 4));
  if (which == 3) {
    cuMemUnmap(va, 4 * kMiB);
    T(cuMemcpyHtoD(va, host, 4));
  }
  if (which == 4) {
    T(cuMemsetD8(va + 4 * kMiB, 0, 16));
  }
  if (which == 5) {
    volatile char* p = reinterpret_cast<volatile char*>(va);
    std::printf("host access of device memory\n");
    T([&] { return static_cast<CUresult>(*p); }());
  }
  T(cuCtxSynchronize());
  T(cuMemAlloc(&va, 100));
}

void section_graphs() {
  start();
  CUstream s, other;
  cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  CUdeviceptr p, q;
  cuMemAlloc(&p, kMiB);
  CUgraph g = nullptr;
  CUgraphExec x = nullptr;
  CUstreamCaptureStatus status;
  T(cuStreamEndCapture(s, &g));
  T(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TV(cuStreamIsCapturing(s, &status), "%d", static_cast<int>(status));
  T(cuMemsetD8Async(p, 0, kMiB, s));
  T(cuMemsetD8Async(p, 0, kMiB, other));
  size_t f, t;
  T(cuMemGetInfo(&f, &t));
  T(cuStreamQuery(other));
  T(cuStreamEndCapture(s, &g));
  size_t n = 0;
  TV(cuGraphGetNodes(g, nullptr, &n), "%zu nodes", n);
  cost("instantiate", [&] { T(cuGraphInstantiate(&x, g, 0)); });
  cost("launch", [&] { T(cuGraphLaunch(x, s)); });
  T(cuStreamSynchronize(s));
  for (int mode = 0; mode < 3; mode++) {  // which calls end a capture, in each mode
    auto begin = [&] {
      cuStreamBeginCapture(s, static_cast<CUstreamCaptureMode>(mode));
      cuMemsetD8Async(p, 0, 10, s);
    };
    auto end = [&](const char* what, int rc) {
      CUgraph h = nullptr;
      cuStreamIsCapturing(s, &status);
      int e = cuStreamEndCapture(s, &h);
      std::printf("mode %d %s rc %d status %d end rc %d\n", mode, what, rc,
                  static_cast<int>(status), e);
      if (h) cuGraphDestroy(h);
    };
    begin();
    end("cuMemAlloc", cuMemAlloc(&q, kMiB));
    begin();
    end("cuMemFree", cuMemFree(p));
    cuMemAlloc(&p, kMiB);
    begin();
    end("cuStreamSynchronize", cuStreamSynchronize(s));
    begin();
    end("cuStreamQuery", cuStreamQuery(s));
    begin();
    end("cuCtxSynchronize", cuCtxSynchronize());
    begin();
    end("cuMemcpyHtoD", cuMemcpyHtoD(p, &n, 8));
    begin();
    end("cuMemHostAlloc", [&] {
      void* h;
      return cuMemHostAlloc(&h, 100, 0);
    }());
    begin();
    end("legacy memset", cuMemsetD8Async(p, 0, 10, nullptr));
    begin();
    end("cuStreamCreate", [&] {
      CUstream z;
      return cuStreamCreate(&z, 0);
    }());
    begin();
    end("cuEventCreate", [&] {
      CUevent z;
      return cuEventCreate(&z, 0);
    }());
    begin();
    end("cuEventRecord", [&] {
      CUevent z;
      cuEventCreate(&z, 0);
      return cuEventRecord(z, s);
    }());
    begin();
    end("cuEventQuery of a captured one", [&] {
      CUevent z;
      cuEventCreate(&z, 0);
      cuEventRecord(z, s);
      return cuEventQuery(z);
    }());
    begin();
    end("unjoined fork", [&] {
      CUevent z;
      cuEventCreate(&z, 0);
      cuEventRecord(z, s);
      int r = cuStreamWaitEvent(other, z, 0);
      cuMemsetD8Async(p, 0, 10, other);
      return r;
    }());
    cuStreamDestroy(other);
    cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
    begin();
    end("module load", [&] {
      CUmodule m;
      return cuModuleLoadData(
          &m, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(){ret;}\n");
    }());
    begin();
    end("cuMemCreate", [&] {
      CUmemAllocationProp a{};
      a.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      a.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
      CUmemGenericAllocationHandle h;
      return cuMemCreate(&h, 2 * kMiB, &a, 0);
    }());
  }
  auto graph_memory = [&](const char* when) {
    for (int a = 0; a < 4; a++) {
      uint64_t v = 0;
      int rc = cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(a), &v);
      std::printf("graph memory %s attribute %d rc %d %llu\n", when, a, rc, static_cast<Size>(v));
    }
  };
  // Memory that a graph owns: two allocations that are freed inside, one that is not.
  cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr in1 = 0, in2 = 0, kept = 0;
  T(cuMemAllocAsync(&in1, 50 * kMiB, s));
  T(cuMemsetD8Async(in1, 0, 50 * kMiB, s));
  T(cuMemFreeAsync(in1, s));
  T(cuMemAllocAsync(&in2, 30 * kMiB, s));
  T(cuMemFreeAsync(in2, s));
  T(cuMemAllocAsync(&kept, 20 * kMiB, s));
  T(cuStreamEndCapture(s, &g));
  std::printf("in graph %llx %llx %llx\n", static_cast<Size>(in1), static_cast<Size>(in2),
              static_cast<Size>(kept));
  graph_memory("captured");
  cost("instantiate with memory", [&] { T(cuGraphInstantiate(&x, g, 0)); });
  graph_memory("instantiated");
  cost("launch with memory", [&] {
    T(cuGraphLaunch(x, s));
    T(cuStreamSynchronize(s));
  });
  graph_memory("launched");
  cost("launch again with memory live", [&] { T(cuGraphLaunch(x, s)); });
  cost("free kept", [&] {
    T(cuMemFreeAsync(kept, s));
    T(cuStreamSynchronize(s));
  });
  graph_memory("freed");
  cost("launch again", [&] {
    T(cuGraphLaunch(x, s));
    T(cuStreamSynchronize(s));
  });
  cost("trim", [&] { T(cuDeviceGraphMemTrim(0)); });
  graph_memory("trimmed");
  cost("destroy", [&] {
    T(cuGraphExecDestroy(x));
    T(cuGraphDestroy(g));
  });
  graph_memory("destroyed");
  cost("trim after destroy", [&] { T(cuDeviceGraphMemTrim(0)); });
  graph_memory("trimmed again");
}

// What things other than allocations take.
void section_resources() {
  start();
  CUdeviceptr p;
  std::vector<char> host(64 * kMiB);
  cost("first alloc 64 MiB", [&] { cuMemAlloc(&p, 64 * kMiB); });
  cost("first memset", [&] { cuMemsetD8(p, 0, 64 * kMiB); });
  cost("first copy up 1 KiB", [&] { cuMemcpyHtoD(p, host.data(), 1024); });
  cost("first copy up 64 MiB", [&] { cuMemcpyHtoD(p, host.data(), 64 * kMiB); });
  cost("first copy down 64 MiB", [&] { cuMemcpyDtoH(host.data(), p, 64 * kMiB); });
  cost("first copy on the device", [&] { cuMemcpyDtoD(p, p + kMiB, kMiB); });
  cost("synchronize", [&] { cuCtxSynchronize(); });
  for (int k = 0; k < 40; k++)
    cost("stream", [&] {
      CUstream s;
      cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
      cuMemsetD8Async(p, 0, 4096, s);
    });
  for (int k = 0; k < 20; k++)
    cost("stream of priority", [&] {
      CUstream s;
      cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -1 - k % 5);
      cuMemsetD8Async(p, 0, 4096, s);
    });
  for (int k = 0; k < 10; k++)
    cost("1000 events", [&] {
      for (int i = 0; i < 1000; i++) {
        CUevent e;
        cuEventCreate(&e, i % 2 ? CU_EVENT_DISABLE_TIMING : 0);
        cuEventRecord(e, nullptr);
      }
    });
  for (int k = 0; k < 10; k++)
    cost("20 graphs of 50 nodes", [&] {
      CUstream s;
      cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
      for (int i = 0; i < 20; i++) {
        CUgraph g;
        CUgraphExec x;
        cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
        for (int j = 0; j < 50; j++) cuMemsetD8Async(p, 0, 4096, s);
        cuStreamEndCapture(s, &g);
        cuGraphInstantiate(&x, g, 0);
        cuGraphLaunch(x, s);
      }
      cuStreamSynchronize(s);
    });
  for (size_t n : {2048, 4096, 16384, 65536, 131072}) {
    std::printf("%zu ", n);
    cost("stack limit", [&] { T(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, n)); });
  }
  cost("stack limit back", [&] { T(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024)); });
  for (size_t n : {kMiB, 4 * kMiB, 64 * kMiB}) {
    std::printf("%zu ", n);
    cost("printf limit", [&] { T(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, n)); });
  }
  for (size_t n : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
    std::printf("%zu ", n);
    cost("heap limit", [&] { T(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, n)); });
  }
  cost("host 256 MiB", [&] {
    void* h;
    cuMemHostAlloc(&h, 256 * kMiB, 0);
  });
  cost("register", [&] { cuMemHostRegister(host.data(), 64 * kMiB, 0); });
  for (int a = 0; a < 16; a++) {
    size_t v = 0;
    int rc = cuCtxGetLimit(&v, static_cast<CUlimit>(a));
    std::printf("limit %d rc %d %zu\n", a, rc, v);
  }
}

// Which names a runtime of each version is given, and which function it is.
void section_proc(const char* names_file) {
  start();
  void* lib = dlopen("libcuda.so.1", RTLD_NOW);
  std::ifstream in(names_file);
  static const int kVersions[] = {
      2000,  3000,  3020,  4000,  4010,  5000,  5050,  6000,  6050,  7000,  7050,  8000,  9000,
      9020,  10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080,
      12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 14000};
  for (std::string name; std::getline(in, name);) {
    for (unsigned long long flags : {0ull, 2ull}) {
      std::printf("proc %s flags %llu:", name.c_str(), flags);
      std::string last;
      for (int v : kVersions) {
        void* f = nullptr;
        CUdriverProcAddressQueryResult q{};
        int rc = cuGetProcAddress(name.c_str(), &f, v, flags, &q);
        std::string answer =
            "rc " + std::to_string(rc) + " q " + std::to_string(static_cast<int>(q));
        Dl_info info;
        if (f)
          answer = dladdr(f, &info) && info.dli_sname && info.dli_saddr == f ? info.dli_sname
                                                                             : "unnamed";
        if (answer != last) std::printf(" %d=%s", v, answer.c_str());
        last = answer;
      }
      std::printf("\n");
    }
    std::printf("dlsym %s %d\n", name.c_str(), dlsym(lib, name.c_str()) != nullptr);
  }
  void* f = reinterpret_cast<void*>(1);
  CUdriverProcAddressQueryResult q{};
  TV(cuGetProcAddress("cuNothing", &f, 13000, 0, &q), "%p", f);
  T(cuGetProcAddress(nullptr, &f, 13000, 0, &q));
  T(cuGetProcAddress("cuInit", nullptr, 13000, 0, &q));
  T(cuGetProcAddress("cuInit", &f, 13000, 7, &q));
  TV(cuGetProcAddress("", &f, 13000, 0, &q), "%p", f);
}

}  // namespace

int main(int argc, char** argv) {
  std::string section = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGSEGV, on_crash);
  std::printf("section %s\n", section.c_str());
  if (section == "device")
    section_device();
  else if (section == "memory")
    section_memory();
  else if (section == "pointers")
    section_pointers();
  else if (section == "errors")
    section_errors();
  else if (section == "sticky" && argc > 2)
    section_sticky(std::atoi(argv[2]));
  else if (section == "graphs")
    section_graphs();
  else if (section == "resources")
    section_resources();
  else if (section == "proc" && argc > 2)
    section_proc(argv[2]);
  else {
    std::fprintf(
        stderr,
        "usage: answers device|memory|pointers|errors|graphs|resources|sticky 0..5|proc NAMES\n");
    return 2;
  }
  std::printf("end %s\n", section.c_str());
}
