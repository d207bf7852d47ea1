// Which addresses a real driver hands out, and what each call takes of the device's free memory.
//
//   addresses PATTERN SEED OPERATIONS [nofree]
//
// One pattern a process, so that the driver's address space starts fresh. One line per call on
// standard output:
//   + KIND BYTES ADDRESS rc R free DELTA
//   - KIND ADDRESS rc R free DELTA
// DELTA: bytes of free memory gained.
// Patterns choose kinds and sizes; the sequence follows from the seed alone. "nofree" leaves out
// the free-memory figures, for processes that run at the same time.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

using Size = unsigned long long;
constexpr Size kMiB = 1ull << 20, kGiB = 1ull << 30;

enum class Kind { kPlain, kPitched, kVirtual, kReserve, kAsync, kHost, kManaged, kArray, kMap };
const char* const kKindNames[] = {"plain", "pitched", "virtual", "reserve", "async",
                                  "host",  "managed", "array",   "mmap"};

struct Block {
  Kind kind;
  Size bytes;
  CUdeviceptr address;
  void* host = nullptr;
  CUarray array = nullptr;
  CUmemGenericAllocationHandle handle = 0;
};

class Prober {
 public:
  Prober(unsigned seed, bool with_free) : random_(seed), with_free_(with_free) {
    cuInit(0);
    cuDeviceGet(&device_, 0);
    cuDevicePrimaryCtxRetain(&context_, device_);
    cuCtxSetCurrent(context_);
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property_.location.id = device_;
    cuMemGetAllocationGranularity(&granularity_, &property_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    size_t total = 0;
    cuMemGetInfo(&free_, &total);
    std::printf("context free %zu total %zu granularity %zu\n", free_, total, granularity_);
  }

  // A number in [0, n).
  Size below(Size n) { return random_() % n; }
  template <size_t N>
  Size pick(const Size (&sizes)[N]) {
    return sizes[below(N)];
  }
  // 2^low .. 2^high bytes, evenly over the exponent.
  Size log_size(int low, int high) {
    int bit = low + static_cast<int>(below(high - low));
    return (Size{1} << bit) + (below(1u << 16) << 4) % (Size{1} << bit);
  }

  size_t live() const { return blocks_.size(); }
  Size live_bytes() const { return live_bytes_; }

  CUresult take(Kind kind, Size bytes) {
    Block b{kind, bytes, 0};
    CUresult r = CUDA_SUCCESS;
    switch (kind) {
      case Kind::kPlain: r = cuMemAlloc(&b.address, bytes); break;
      case Kind::kPitched: {
        size_t pitch = 0, width = 1000 + below(5000);
        r = cuMemAllocPitch(&b.address, &pitch, width, std::max<Size>(1, bytes / width), 4);
        b.bytes = pitch * std::max<Size>(1, bytes / width);
        break;
      }
      case Kind::kReserve:
        b.bytes = round_up(bytes);
        r = cuMemAddressReserve(&b.address, b.bytes, 0, 0, 0);
        break;
      case Kind::kVirtual: r = take_virtual(b); break;
      case Kind::kAsync: r = cuMemAllocAsync(&b.address, bytes, stream_); break;
      case Kind::kHost:
        r = cuMemHostAlloc(&b.host, bytes, below(2) ? 0 : CU_MEMHOSTALLOC_PORTABLE);
        b.address = address_of(b.host);
        break;
      case Kind::kManaged: r = cuMemAllocManaged(&b.address, bytes, CU_MEM_ATTACH_GLOBAL); break;
      case Kind::kArray: {
        CUDA_ARRAY_DESCRIPTOR d{};
        d.Width = 1024;
        d.Height = std::max<Size>(1, std::min<Size>(bytes / 4096, 32768));
        d.Format = CU_AD_FORMAT_FLOAT;
        d.NumChannels = 1;
        b.bytes = d.Width * d.Height * 4;
        r = cuArrayCreate(&b.array, &d);
        break;
      }
      case Kind::kMap:  // the host's own mappings live in the same address space
        b.host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        b.address = address_of(b.host);
        break;
    }
    std::printf("+ %s %llu %llx rc %d", kKindNames[static_cast<int>(kind)], b.bytes,
                static_cast<Size>(b.address), r);
    print_free();
    if (r == CUDA_SUCCESS) {
      live_bytes_ += b.bytes;
      blocks_.push_back(b);
    }
    return r;
  }

  void give_back(size_t i) {
    Block b = blocks_[i];
    blocks_.erase(blocks_.begin() + static_cast<long>(i));
    live_bytes_ -= b.bytes;
    CUresult r = CUDA_SUCCESS;
    switch (b.kind) {
      case Kind::kPlain:
      case Kind::kPitched:
      case Kind::kManaged: r = cuMemFree(b.address); break;
      case Kind::kReserve: r = cuMemAddressFree(b.address, b.bytes); break;
      case Kind::kVirtual:
        cuMemUnmap(b.address, b.bytes);
        cuMemRelease(b.handle);
        r = cuMemAddressFree(b.address, b.bytes);
        break;
      case Kind::kAsync:
        cuMemFreeAsync(b.address, stream_);
        r = cuStreamSynchronize(stream_);
        break;
      case Kind::kHost: r = cuMemFreeHost(b.host); break;
      case Kind::kArray: r = cuArrayDestroy(b.array); break;
      case Kind::kMap: munmap(b.host, b.bytes); break;
    }
    std::printf("- %s %llu %llx rc %d", kKindNames[static_cast<int>(b.kind)], b.bytes,
                static_cast<Size>(b.address), r);
    print_free();
  }

  void give_back_random() {
    if (!blocks_.empty()) give_back(below(blocks_.size()));
  }
  void give_back_all(bool newest_first) {
    while (!blocks_.empty()) give_back(newest_first ? blocks_.size() - 1 : 0);
  }

  void print_maps(const char* when) {
    std::printf("maps %s\n", when);
    std::ifstream in("/proc/self/maps");
    for (std::string line; std::getline(in, line);) std::printf("m %s\n", line.c_str());
  }

 private:
  static CUdeviceptr address_of(void* p) { return reinterpret_cast<CUdeviceptr>(p); }
  Size round_up(Size n) const { return (n + granularity_ - 1) / granularity_ * granularity_; }

  CUresult take_virtual(Block& b) {
    b.bytes = round_up(b.bytes);
    if (CUresult r = cuMemAddressReserve(&b.address, b.bytes, 0, 0, 0)) return r;
    if (CUresult r = cuMemCreate(&b.handle, b.bytes, &property_, 0)) {
      cuMemAddressFree(b.address, b.bytes);
      return r;
    }
    CUresult r = cuMemMap(b.address, b.bytes, 0, b.handle, 0);
    CUmemAccessDesc access{property_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (!r) r = cuMemSetAccess(b.address, b.bytes, &access, 1);
    return r;
  }

  void print_free() {
    if (!with_free_) {
      std::printf("\n");
      return;
    }
    size_t now = 0, total = 0;
    cuMemGetInfo(&now, &total);
    std::printf(" free %+lld\n", static_cast<long long>(now) - static_cast<long long>(free_));
    free_ = now;
  }

  std::mt19937_64 random_;
  bool with_free_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmemAllocationProp property_{};
  size_t granularity_ = 0, free_ = 0;
  Size live_bytes_ = 0;
  std::vector<Block> blocks_;
};

// Sizes as PyTorch's caching allocator asks for them.
Size torch_size(Prober& p) {
  Size which = p.below(10);
  if (which < 3) return 2 * kMiB;
  if (which < 6) return 20 * kMiB;
  if (which < 9) return (6 + p.below(60)) * 2 * kMiB;
  return (6 + p.below(1200)) * 2 * kMiB;
}

Size size_for(const std::string& pattern, Prober& p) {
  static const Size kEdges[] = {1,
                                256,
                                512,
                                4096,
                                65536,
                                65537,
                                kMiB - 1,
                                kMiB,
                                kMiB + 1,
                                2 * kMiB - 1,
                                2 * kMiB,
                                2 * kMiB + 1,
                                4 * kMiB,
                                30 * kMiB,
                                32 * kMiB - 1,
                                32 * kMiB,
                                32 * kMiB + 1,
                                34 * kMiB,
                                62 * kMiB,
                                64 * kMiB,
                                66 * kMiB,
                                126 * kMiB,
                                128 * kMiB,
                                130 * kMiB,
                                510 * kMiB,
                                512 * kMiB,
                                514 * kMiB,
                                kGiB - 2 * kMiB,
                                kGiB,
                                kGiB + 2 * kMiB,
                                2 * kGiB,
                                3 * kGiB + 6 * kMiB};
  if (pattern == "small") return p.below(3) ? p.log_size(4, 21) : p.pick(kEdges) % (2 * kMiB) + 1;
  if (pattern == "mid") return (1 + p.below(32)) * 2 * kMiB;
  if (pattern == "odd") return p.log_size(20, 28) + p.below(100000);
  if (pattern == "big") return p.log_size(21, 33);
  if (pattern == "edges") return p.pick(kEdges);
  if (pattern == "smallbig") return p.below(2) ? p.log_size(8, 21) : torch_size(p);
  return torch_size(p);
}

Kind kind_for(const std::string& pattern, Prober& p) {
  if (pattern == "virtual") return p.below(3) ? Kind::kVirtual : Kind::kPlain;
  if (pattern == "reserve") return p.below(4) == 0 ? Kind::kReserve : Kind::kPlain;
  if (pattern == "hostmap") return p.below(3) == 0 ? Kind::kMap : Kind::kPlain;
  if (pattern == "async") return p.below(2) ? Kind::kAsync : Kind::kPlain;
  if (pattern == "pinned") return p.below(3) == 0 ? Kind::kHost : Kind::kPlain;
  if (pattern == "all") {
    static const Kind kKinds[] = {Kind::kPlain,   Kind::kPlain,   Kind::kPlain, Kind::kPitched,
                                  Kind::kVirtual, Kind::kReserve, Kind::kAsync, Kind::kHost,
                                  Kind::kManaged, Kind::kArray,   Kind::kMap};
    return kKinds[p.below(sizeof kKinds / sizeof *kKinds)];
  }
  return Kind::kPlain;
}

// What the card holds: large blocks until it refuses, then smaller ones.
void fill(Prober& p) {
  for (Size bytes : {8 * kGiB, kGiB, 128 * kMiB, 20 * kMiB, 2 * kMiB, 512 * 1024ull, 4096ull})
    for (int i = 0; i < 400 && p.take(Kind::kPlain, bytes) == CUDA_SUCCESS; i++) {
    }
  p.take(Kind::kVirtual, 2 * kMiB);
  p.take(Kind::kAsync, 2 * kMiB);
  p.give_back_all(false);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: addresses PATTERN SEED OPERATIONS [nofree]\n");
    return 2;
  }
  std::string pattern = argv[1];
  int operations = std::atoi(argv[3]);
  std::printf("begin %s seed %s operations %s\n", argv[1], argv[2], argv[3]);
  Prober p(static_cast<unsigned>(std::atoi(argv[2])), argc < 5);
  if (pattern == "all" || pattern == "hostmap") p.print_maps("start");
  const Size limit = 60 * kGiB, host_limit = 96;
  if (pattern == "fill")
    fill(p);
  else
    for (int i = 0; i < operations; i++) {
      // Grow, shrink and turn over in waves, with everything given back now and then.
      bool growing = (i / 60) % 2 == 0;
      if (p.live() > 0 && (p.live_bytes() > limit || p.below(10) < (growing ? 3u : 6u))) {
        p.give_back_random();
        continue;
      }
      if (i % 400 == 399) {
        p.give_back_all(p.below(2));
        continue;
      }
      Kind kind = kind_for(pattern, p);
      Size bytes = size_for(pattern, p);
      if (kind == Kind::kHost || kind == Kind::kManaged || kind == Kind::kArray)
        bytes = std::min<Size>(bytes, host_limit * kMiB);
      p.take(kind, bytes);
    }
  if (pattern == "all" || pattern == "hostmap") p.print_maps("end");
  std::printf("end %s\n", argv[1]);
}
