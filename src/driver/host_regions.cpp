#include "driver/host_regions.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace tonnage::driver {
namespace {

constexpr uint64_t kAddressBits = 47;
constexpr uint64_t kPage = 4096;

// One bit per unit of a 47-bit address space, in pages that are only touched where they are used.
template <uint64_t kUnit>
class AddressBits {
 public:
  bool test(uint64_t address) const {
    const std::atomic<uint64_t>* bits = bits_.load(std::memory_order_acquire);
    if (!bits || address >> kAddressBits) return false;
    const uint64_t i = address / kUnit;
    return (bits[i / 64].load(std::memory_order_relaxed) >> (i % 64)) & 1;
  }
  bool set(uint64_t address, uint64_t bytes, bool value) {
    std::atomic<uint64_t>* bits = made();
    if (!bits) return false;
    for (uint64_t i = address / kUnit; i < (address + bytes) / kUnit && i / 64 < kWords; i++) {
      if (value)
        bits[i / 64].fetch_or(1ull << (i % 64));
      else
        bits[i / 64].fetch_and(~(1ull << (i % 64)));
    }
    return true;
  }

 private:
  static constexpr uint64_t kWords = (1ull << kAddressBits) / kUnit / 64;
  std::atomic<uint64_t>* made() {
    std::atomic<uint64_t>* bits = bits_.load(std::memory_order_acquire);
    if (bits) return bits;
    void* memory = mmap(nullptr, kWords * 8, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* fresh = static_cast<std::atomic<uint64_t>*>(memory);
    if (bits_.compare_exchange_strong(bits, fresh)) return fresh;
    munmap(memory, kWords * 8);
    return bits;
  }
  std::atomic<std::atomic<uint64_t>*> bits_{nullptr};
};

AddressBits<gpu::kRegion> g_regions;
AddressBits<gpu::kAllocationGranularity> g_host_memory;

}  // namespace

bool HostRegions::contains(uint64_t address) {
  return g_regions.test(address) && !g_host_memory.test(address);
}

void HostRegions::set_host_memory(uint64_t address, uint64_t bytes, bool is_host) {
  g_host_memory.set(address, bytes, is_host);
}

uint64_t HostRegions::take(uint64_t bytes) {
  const uint64_t size = gpu::round_up(bytes, gpu::kRegion);
  if (size < bytes) return 0;
  // As a real driver does: it asks for a range that is longer by the alignment less one page, and
  // keeps the highest aligned part. So it uses a gap only if the gap is that much longer than the
  // region. The kernel gives the highest such gap. (For multiples of huge pages the kernel would
  // align the range itself, and skip gaps that just fit.)
  const uint64_t asked = size + gpu::kRegion - kPage;
  void* memory = mmap(reinterpret_cast<void*>(hint_), asked, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const uint64_t start = reinterpret_cast<uint64_t>(memory), end = start + asked;
  const uint64_t kept =
      hint_ ? gpu::round_up(start, gpu::kRegion) : (end - size) / gpu::kRegion * gpu::kRegion;
  if (kept > start) munmap(memory, kept - start);
  if (end > kept + size) munmap(reinterpret_cast<void*>(kept + size), end - kept - size);
  if (kept + size > 1ull << kAddressBits) {
    munmap(reinterpret_cast<void*>(kept), size);
    return 0;
  }
  if (hint_) hint_ = kept + size;
  if (!g_regions.set(kept, size, true)) {
    munmap(reinterpret_cast<void*>(kept), size);
    return 0;
  }
  return kept;
}

void HostRegions::give_back(uint64_t address, uint64_t bytes) {
  g_regions.set(address, bytes, false);
  munmap(reinterpret_cast<void*>(address), bytes);
}

namespace {

void write_pattern(unsigned char* out, uint32_t pattern, unsigned width, size_t n) {
  for (size_t i = 0; i < n; i += width) memcpy(out + i, &pattern, width);
}

// A piece of memory with the pattern, as a file that can be mapped again and again.
int make_pattern_file(uint32_t pattern, unsigned width, size_t bytes) {
  const int fd = memfd_create("tonnage-pattern", MFD_CLOEXEC);
  if (fd < 0) return -1;
  void* memory = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    return -1;
  }
  write_pattern(static_cast<unsigned char*>(memory), pattern, width, bytes);
  munmap(memory, bytes);
  return fd;
}

bool map_pattern(uint64_t begin, uint64_t end, uint32_t pattern, unsigned width) {
  constexpr int kFlags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (pattern == 0)
    return mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE,
                kFlags | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
  // Makes few mappings: a process may have about 65,000.
  uint64_t piece = 2ull << 20;
  while (piece < (end - begin) / 2048) piece *= 2;
  const int fd = make_pattern_file(pattern, width, piece);
  if (fd < 0) return false;
  bool mapped = true;
  for (uint64_t at = begin; mapped && at < end; at += piece)
    mapped = mmap(reinterpret_cast<void*>(at), std::min(piece, end - at), PROT_READ | PROT_WRITE,
                  kFlags, fd, 0) != MAP_FAILED;
  close(fd);
  return mapped;
}

uint64_t read_number(const char* path) {
  unsigned long long value = 0;
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  const bool read = fscanf(file, "%llu", &value) == 1;
  fclose(file);
  return read ? value : 0;
}

// The memory of this machine, or of the container.
uint64_t find_host_bytes() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (const uint64_t limit = read_number(path)) bytes = std::min(bytes, limit);
  return bytes;
}

}  // namespace

bool fill_host_pages(uint64_t address, uint32_t pattern, unsigned width, size_t n) {
  const uint64_t begin = gpu::round_up(address, kPage), end = (address + n) / kPage * kPage;
  if (begin >= end) return false;
  // A pattern begins anew with every page, and pages are multiples of its width.
  if (!map_pattern(begin, end,
                   width == 1   ? pattern & 0xff
                   : width == 2 ? pattern & 0xffff
                                : pattern,
                   width))
    return false;
  write_pattern(reinterpret_cast<unsigned char*>(address), pattern, width, begin - address);
  write_pattern(reinterpret_cast<unsigned char*>(end), pattern, width, address + n - end);
  return true;
}

uint64_t RegionPages::limit() {
  static const uint64_t host_bytes = find_host_bytes();
  return host_bytes;
}

bool RegionPages::commit(uint64_t address, uint64_t bytes) {
  if (committed_.fetch_add(bytes) + bytes > limit()) {
    committed_.fetch_sub(bytes);
    return false;
  }
  void* memory = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (memory == MAP_FAILED) {
    committed_.fetch_sub(bytes);
    return false;
  }
  HostRegions::set_host_memory(address, bytes, true);
  return true;
}

// Makes the addresses inaccessible again. The whole region may go back to the host.
void RegionPages::decommit(uint64_t address, uint64_t bytes) {
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  HostRegions::set_host_memory(address, bytes, false);
  committed_.fetch_sub(bytes);
}

}  // namespace tonnage::driver
