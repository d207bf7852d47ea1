#include "image/fatbin.h"

#include <algorithm>

namespace tonnage::image {
namespace {

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;  // padded to 8
  uint32_t packed_bytes;   // 0: not packed
  uint32_t options_offset;
  uint16_t code_minor;
  uint16_t code_major;
  uint32_t arch;
  uint32_t name_offset;
  uint32_t name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t unpacked_bytes;
};
static_assert(sizeof(FatbinHeader) == 16 && sizeof(EntryHeader) == 64);

constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchSpecific = 0x100000;
constexpr uint64_t kFlagFamily = 0x200000;
constexpr uint16_t kKindPtx = 1, kKindElf = 2;

bool read_entry(Bytes body, const EntryHeader& header, uint64_t offset, Entry* entry) {
  entry->kind = header.kind == kKindPtx ? EntryKind::kPtx : EntryKind::kElf;
  entry->sm = static_cast<int>(header.arch & 0xffff);
  if (header.kind == kKindPtx) entry->ptx_isa = header.code_major * 10 + header.code_minor;
  entry->flags = header.flags;
  if (header.flags & kFlagArchSpecific)
    entry->suffix = ArchSuffix::kArchSpecific;
  else if (header.flags & kFlagFamily)
    entry->suffix = ArchSuffix::kFamily;
  if (header.flags & kFlagLz4)
    entry->packing = Packing::kLz4;
  else if (header.flags & kFlagZstd)
    entry->packing = Packing::kZstd;

  uint64_t stored = header.payload_bytes;
  if (entry->packing != Packing::kNone) {
    if (header.packed_bytes > stored) return false;
    stored = header.packed_bytes;
  }
  entry->unpacked_bytes = entry->packing == Packing::kNone ? stored : header.unpacked_bytes;
  entry->payload = body.piece(offset + header.header_bytes, stored);
  if (entry->payload.data == nullptr) return false;
  const Bytes own_header = body.piece(offset, header.header_bytes);
  const Bytes name = own_header.piece(header.name_offset, header.name_bytes);
  if (header.name_offset && name.data)
    entry->identifier = {reinterpret_cast<const char*>(name.data), name.size};
  return true;
}

}  // namespace

int list_entries(Bytes image, std::vector<Entry>* entries, int* skipped) {
  entries->clear();
  if (skipped) *skipped = 0;
  FatbinHeader header;
  if (!image.read(0, &header) || header.magic != kFatbinMagic ||
      header.header_bytes < sizeof(FatbinHeader))
    return kInvalidImage;
  const Bytes body = image.piece(header.header_bytes, header.entries_bytes);
  if (body.data == nullptr) return kInvalidImage;

  uint64_t offset = 0;
  EntryHeader entry_header;
  // Less than a header at the end is padding.
  while (body.read(offset, &entry_header)) {
    if (entry_header.header_bytes < sizeof(EntryHeader)) return kInvalidImage;
    if (!body.covers(offset, entry_header.header_bytes)) return kInvalidImage;
    const uint64_t payload_offset = offset + entry_header.header_bytes;
    if (!body.covers(payload_offset, entry_header.payload_bytes)) return kInvalidImage;
    if (entry_header.kind == kKindPtx || entry_header.kind == kKindElf) {
      Entry entry;
      if (!read_entry(body, entry_header, offset, &entry)) return kInvalidImage;
      entries->push_back(entry);
    } else if (skipped) {
      ++*skipped;
    }
    offset = payload_offset + entry_header.payload_bytes;
  }
  return kSuccess;
}

bool runs_on(EntryKind kind, int sm, ArchSuffix suffix, int cc_major, int cc_minor) {
  const int device = cc_major * 10 + cc_minor;
  if (suffix == ArchSuffix::kArchSpecific) return sm == device;
  if (suffix == ArchSuffix::kFamily || kind == EntryKind::kElf)
    return sm / 10 == cc_major && sm % 10 <= cc_minor;
  return sm <= device;
}

const Entry* select_entry(const std::vector<Entry>& entries, int cc_major, int cc_minor) {
  const Entry* best = nullptr;
  // Machine code before PTX, then the newer architecture, then the more specific build; the first
  // of equals.
  auto rank = [](const Entry& entry) {
    const int specific = entry.suffix == ArchSuffix::kArchSpecific ? 2
                         : entry.suffix == ArchSuffix::kFamily     ? 1
                                                                   : 0;
    return (entry.kind == EntryKind::kElf ? 1 << 24 : 0) + entry.sm * 4 + specific;
  };
  for (const Entry& entry : entries) {
    if (!runs_on(entry.kind, entry.sm, entry.suffix, cc_major, cc_minor)) continue;
    if (!best || rank(entry) > rank(*best)) best = &entry;
  }
  return best;
}

}  // namespace tonnage::image
