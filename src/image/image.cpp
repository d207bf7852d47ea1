#include "image/image.h"

#include <dlfcn.h>

#include <new>

#include "image/ptx.h"
#include "image/unpack.h"

namespace tonnage::image {
namespace {

// fatbinary_section.h: __fatBinC_Wrapper_t
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* filename_or_fatbins;
};

bool lies_in_loaded_object(const void* data) {
  Dl_info info;
  return dladdr(data, &info) != 0;
}

// A lone cubin or PTX text as if it were the only entry of a fat binary.
int lone_entry(Bytes image, Entry* entry) {
  uint32_t magic = 0;
  const bool has_magic = image.size == Bytes::kUnbounded || image.size >= 4;
  if (has_magic && image.read(0, &magic) && magic == 0x464c457f) {
    const uint64_t size = elf_image_bytes(image);
    if (size == 0 || !image.covers(0, size)) return kInvalidImage;
    entry->kind = EntryKind::kElf;
    entry->payload = {image.data, size};
    entry->unpacked_bytes = size;
    return elf_architecture(entry->payload, &entry->sm, &entry->suffix) ? kSuccess : kInvalidImage;
  }
  const char* text = reinterpret_cast<const char*>(image.data);
  // Binary rubbish without an end must not be searched for one: PTX starts with white space, a
  // comment or a directive.
  if (image.empty() ||
      !(text[0] == '.' || text[0] == '/' || text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')))
    return kInvalidImage;
  const uint64_t size =
      image.size == Bytes::kUnbounded ? std::strlen(text) : strnlen(text, image.size);
  entry->kind = EntryKind::kPtx;
  entry->payload = {image.data, size};
  entry->unpacked_bytes = size;
  if (!looks_like_ptx(entry->payload)) return kInvalidImage;
  entry->ptx_isa = ptx_isa({text, size});
  return ptx_target({text, size}, &entry->sm, &entry->suffix) ? kSuccess : kInvalidPtx;
}

}  // namespace

std::unique_ptr<Module> Module::open(const void* data, int cc_major, int cc_minor, int* status,
                                     Keep keep) {
  *status = kInvalidImage;
  if (!data) return nullptr;
  const void* image = data;
  uint32_t magic;
  std::memcpy(&magic, data, sizeof magic);
  if (magic == kWrapperMagic) {
    Wrapper wrapper;
    std::memcpy(&wrapper, data, sizeof wrapper);
    image = wrapper.data;
    if (!image) return nullptr;
  }
  if (keep == Keep::kGuess) keep = lies_in_loaded_object(image) ? Keep::kForever : Keep::kThisCall;
  return open(Bytes{static_cast<const uint8_t*>(image), Bytes::kUnbounded}, cc_major, cc_minor,
              status, keep);
}

std::unique_ptr<Module> Module::open(Bytes image, int cc_major, int cc_minor, int* status,
                                     Keep keep) {
  *status = kInvalidImage;
  if (image.empty()) return nullptr;
  try {
    Entry chosen;
    uint32_t magic = 0;
    if (image.read(0, &magic) && magic == kFatbinMagic) {
      std::vector<Entry> entries;
      *status = list_entries(image, &entries);
      if (*status != kSuccess) return nullptr;
      const Entry* best = select_entry(entries, cc_major, cc_minor);
      if (!best) {
        *status = kNoBinaryForGpu;
        return nullptr;
      }
      chosen = *best;
    } else {
      *status = lone_entry(image, &chosen);
      if (*status != kSuccess) return nullptr;
      if (!runs_on(chosen.kind, chosen.sm, chosen.suffix, cc_major, cc_minor)) {
        *status = chosen.kind == EntryKind::kPtx ? kInvalidPtx : kNoBinaryForGpu;
        return nullptr;
      }
    }
    if (chosen.kind == EntryKind::kPtx && chosen.ptx_isa > kNewestPtxIsa) {
      *status = kUnsupportedPtx;
      return nullptr;
    }
    std::unique_ptr<Module> module(new Module(chosen, cc_major * 10 + cc_minor));
    if (keep != Keep::kForever && !module->code(status)) return nullptr;
    *status = kSuccess;
    return module;
  } catch (const std::bad_alloc&) {
    *status = kOutOfMemory;
    return nullptr;
  }
}

const CodeInfo* Module::code(int* status) const {
  const CodeInfo* ready = ready_.load(std::memory_order_acquire);
  if (!ready) {
    const std::lock_guard<std::mutex> lock(reading_);
    ready = ready_.load(std::memory_order_relaxed);
    if (!ready && failure_ == kSuccess) {
      std::unique_ptr<uint8_t[]> owned;
      const Bytes bytes = unpack(entry_, &owned, &failure_);
      std::unique_ptr<CodeInfo> code(new (std::nothrow) CodeInfo);
      if (failure_ == kSuccess && !code) failure_ = kOutOfMemory;
      if (failure_ == kSuccess) {
        failure_ = entry_.kind == EntryKind::kPtx ? parse_ptx(bytes, device_sm_, code.get())
                                                  : parse_cubin(bytes, code.get());
      }
      if (failure_ == kSuccess) {
        code_ = std::move(code);
        ready = code_.get();
        ready_.store(ready, std::memory_order_release);
      }
    }
    if (!ready && status) *status = failure_;
  }
  if (ready && status) *status = kSuccess;
  return ready;
}

const KernelInfo* Module::kernel(std::string_view name) const {
  const CodeInfo* info = code();
  return info ? info->kernel(name) : nullptr;
}

const GlobalInfo* Module::global(std::string_view name) const {
  const CodeInfo* info = code();
  return info ? info->global(name) : nullptr;
}

std::span<const KernelInfo> Module::kernels() const {
  const CodeInfo* info = code();
  return info ? std::span<const KernelInfo>(info->kernels) : std::span<const KernelInfo>();
}

std::span<const GlobalInfo> Module::globals() const {
  const CodeInfo* info = code();
  return info ? std::span<const GlobalInfo>(info->globals) : std::span<const GlobalInfo>();
}

uint64_t Module::loaded_bytes() const {
  const CodeInfo* info = ready_.load(std::memory_order_acquire);
  return info ? info->loaded_bytes() : entry_.unpacked_bytes;
}

}  // namespace tonnage::image
