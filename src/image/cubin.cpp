#include "image/cubin.h"

#include <elf.h>

#include <algorithm>
#include <new>

namespace tonnage::image {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr uint8_t kAbiOld =
    7;  // EI_ABIVERSION up to CUDA 12: architecture in the low byte of e_flags
constexpr uint32_t kOldArchSpecific = 0x800;
constexpr uint8_t kOtherKernel = 0x10;      // STO_CUDA_ENTRY
constexpr uint8_t kOtherManaged = 0x04;     // STO_CUDA_MANAGED
constexpr uint32_t kTypeInfo = SHT_LOPROC;  // SHT_CUDA_INFO
constexpr uint32_t kTypeCallGraph = SHT_LOPROC + 1;
constexpr uint32_t kTypeCompat = SHT_LOPROC + 0x86;
// Per block, for the system. From sm_90 on compilers lay it out at the start of .nv.shared; before,
// the driver adds it.
constexpr uint32_t kSystemSharedBytes = 1024;
constexpr int kFirstSmWithSystemShared = 90;
constexpr uint64_t kMaxSections = 1u << 22;
constexpr int kDeepestCall = 16;
// Lists of the call graph section.
constexpr uint32_t kDirectCalls = 0xffffffff, kAddressTaken = 0xfffffffe,
                   kIndirectCalls = 0xfffffffd, kIndirectPairs = 0xfffffffc;
// The device runtime's functions; the first two are behind printf and assert.
constexpr std::string_view kPrintf = "vprintf", kAssertion = "__assertfail", kMalloc = "malloc";

enum InfoAttribute : uint8_t {
  kAttrMaxThreads = 0x05,
  kAttrRequiredBlock = 0x10,
  kAttrFrameSize = 0x11,
  kAttrMinStackSize = 0x12,
  kAttrParamInfo = 0x17,
  kAttrParamBytes = 0x19,
  kAttrRegisters = 0x2f,
  kAttrCtaPerCluster = 0x3d,
  kAttrExplicitCluster = 0x3e,
  kAttrMaxClusterRank = 0x3f,
  kAttrParamInfo2 = 0x45,
  kAttrBarriers = 0x4c,
};

struct Record {
  uint8_t format;
  uint8_t attribute;
  uint16_t value;  // for kFormatSized: bytes that follow
};
constexpr uint8_t kFormatSized = 4;

// Calls visit(record, payload) for every record of an .nv.info or .nv.compat section; stops at the
// first that does not fit.
template <class Visit>
void each_record(Bytes section, Visit visit) {
  uint64_t offset = 0;
  Record record;
  while (section.read(offset, &record)) {
    offset += sizeof record;
    Bytes payload;
    if (record.format == kFormatSized) {
      payload = section.piece(offset, record.value);
      if (record.value && !payload.data) return;
      offset += record.value;
    }
    visit(record, payload);
  }
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool header_of(Bytes image, Elf64_Ehdr* header) {
  return image.read(0, header) && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
         header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
         header->e_machine == kMachineCuda;
}

// The number of sections; 0 where the table is unusable.
uint64_t section_count(Bytes image, const Elf64_Ehdr& header) {
  if (header.e_shoff == 0 || header.e_shentsize < sizeof(Elf64_Shdr)) return 0;
  uint64_t count = header.e_shnum;
  Elf64_Shdr first;
  if (!image.read(header.e_shoff, &first)) return 0;
  if (count == 0) count = first.sh_size;  // more than 65279 sections
  return count <= kMaxSections && image.covers(header.e_shoff, count * header.e_shentsize) ? count
                                                                                           : 0;
}

struct Call {
  uint32_t caller, callee;  // symbols
};

struct Parser {
  Bytes image;
  CodeInfo* out = nullptr;
  Elf64_Ehdr header = {};
  std::vector<Elf64_Shdr> sections;
  Bytes section_names;
  std::vector<Elf64_Sym> symbols;
  Bytes symbol_names;
  std::vector<uint32_t> extended_index;  // SHT_SYMTAB_SHNDX
  std::vector<int32_t> kernel_of_section, kernel_of_symbol;
  struct ParamRange {
    size_t kernel, first, count;
  };
  std::vector<ParamRange> param_ranges;
  int virtual_sm = 0;
  uint64_t user_constant_bytes = 0;

  std::string_view section_name(const Elf64_Shdr& section) const {
    return section_names.text(section.sh_name);
  }
  Bytes contents(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    return image.piece(section.sh_offset, section.sh_size);
  }
  uint32_t section_of(size_t symbol) const {
    const uint32_t index = symbols[symbol].st_shndx;
    if (index == SHN_XINDEX && symbol < extended_index.size()) return extended_index[symbol];
    return index;
  }
  KernelInfo* kernel_at(uint32_t section) {
    if (section >= kernel_of_section.size() || kernel_of_section[section] < 0) return nullptr;
    return &out->kernels[kernel_of_section[section]];
  }
  KernelInfo* kernel_by_symbol(uint32_t symbol) {
    if (symbol >= kernel_of_symbol.size() || kernel_of_symbol[symbol] < 0) return nullptr;
    return &out->kernels[kernel_of_symbol[symbol]];
  }

  int parse() {
    if (!read_tables()) return kInvalidImage;
    if (!elf_architecture(image, &out->sm, &out->suffix)) return kInvalidImage;
    virtual_sm = out->sm;
    out->relocatable = header.e_type == ET_REL;
    if (header.e_ident[EI_ABIVERSION] <= kAbiOld && (header.e_flags >> 16 & 0xff))
      virtual_sm = header.e_flags >> 16 & 0xff;
    read_sections();
    read_symbols();
    read_resources();
    finish();
    return kSuccess;
  }

  bool read_tables() {
    if (!header_of(image, &header)) return false;
    const uint64_t count = section_count(image, header);
    if (count == 0) return false;
    sections.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      if (!image.read(header.e_shoff + i * header.e_shentsize, &sections[i])) return false;
    }
    const uint32_t names =
        header.e_shstrndx == SHN_XINDEX ? sections[0].sh_link : header.e_shstrndx;
    if (names >= count) return false;
    section_names = contents(sections[names]);
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type == SHT_SYMTAB && symbols.empty()) {
        const Bytes table = contents(section);
        if (section.sh_size && !table.data) return false;
        if (section.sh_link >= count) return false;
        symbols.resize(table.size / sizeof(Elf64_Sym));
        if (!symbols.empty())
          std::memcpy(symbols.data(), table.data, symbols.size() * sizeof(Elf64_Sym));
        symbol_names = contents(sections[section.sh_link]);
      } else if (section.sh_type == SHT_SYMTAB_SHNDX) {
        const Bytes table = contents(section);
        extended_index.resize(table.size / 4);
        if (!extended_index.empty())
          std::memcpy(extended_index.data(), table.data, extended_index.size() * 4);
      }
    }
    return true;
  }

  // Totals, and what holds for the whole image.
  void read_sections() {
    for (const Elf64_Shdr& section : sections) {
      const std::string_view name = section_name(section);
      if (name == ".note.nv.cuinfo") {
        // Note header (12), "NVIDIA Corp\0" (12), then version and virtual architecture, 16 bits
        // each.
        uint16_t value;
        if (contents(section).read(26, &value) && value) virtual_sm = value;
      }
      // A second form of the code for other architectures travels in .nv.merc.* and .nv.capmerc.*;
      // it is not loaded.
      if (!(section.sh_flags & SHF_ALLOC) || starts_with(name, ".nv.merc") ||
          starts_with(name, ".nv.capmerc"))
        continue;
      if (starts_with(name, ".text"))
        out->code_bytes += section.sh_size;
      else if (starts_with(name, ".nv.constant"))
        out->constant_bytes += section.sh_size;
      else if (starts_with(name, ".nv.global"))
        out->variable_bytes += section.sh_size;
      if (name == ".nv.constant3") user_constant_bytes += section.sh_size;
    }
  }

  void read_symbols() {
    kernel_of_section.assign(sections.size(), -1);
    kernel_of_symbol.assign(symbols.size(), -1);
    uint64_t name_bytes = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      note_runtime_use(i);
      name_bytes +=
          is_kernel(i) || is_variable(i) ? symbol_names.text(symbols[i].st_name).size() : 0;
    }
    // Hostile tables may name one long string many times.
    if (name_bytes > image.size * 8 + 4096) return;
    out->names.reset(new char[name_bytes + 1]);
    char* end = out->names.get();
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool kernel = is_kernel(i);
      if (!kernel && !is_variable(i)) continue;
      const std::string_view text = symbol_names.text(symbols[i].st_name);
      text.copy(end, text.size());
      const std::string_view name(end, text.size());
      end += text.size();
      const uint32_t section = section_of(i);
      if (kernel) {
        KernelInfo info;
        info.name = name;
        info.binary_version = static_cast<int16_t>(out->sm);
        info.ptx_version = static_cast<int16_t>(virtual_sm);
        info.const_bytes = static_cast<uint32_t>(user_constant_bytes);
        info.code_bytes = sections[section].sh_size;
        info.registers = sections[section].sh_info >> 24;
        info.barriers = sections[section].sh_flags >> 20 & 0x7f;
        kernel_of_section[section] = kernel_of_symbol[i] =
            static_cast<int32_t>(out->kernels.size());
        out->kernels.push_back(info);
      } else {
        const std::string_view in = section_name(sections[section]);
        out->globals.push_back({name, symbols[i].st_size, starts_with(in, ".nv.constant"),
                                (symbols[i].st_other & kOtherManaged) != 0});
      }
    }
    for (size_t i = 0; i < sections.size(); ++i) {
      const Elf64_Shdr& section = sections[i];
      if (kernel_of_section[i] >= 0 || !(section.sh_flags & SHF_ALLOC) || section.sh_size == 0 ||
          !starts_with(section_name(section), ".text"))
        continue;
      out->function_bytes += section.sh_size;
      out->functions++;
    }
  }

  // The name of a function that the driver's device runtime provides; empty for others.
  std::string_view runtime_function(size_t i) const {
    if (symbols[i].st_shndx != SHN_UNDEF || ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC)
      return {};
    return symbol_names.text(symbols[i].st_name);
  }
  void note_runtime_use(size_t i) {
    if (symbols[i].st_other & kOtherManaged && ELF64_ST_TYPE(symbols[i].st_info) == STT_OBJECT)
      out->has_managed = true;
    const std::string_view name = runtime_function(i);
    if (name == kPrintf)
      out->uses_printf = true;
    else if (name == kAssertion)
      out->uses_assert = true;
    else if (name == kMalloc || name == "free")
      out->uses_malloc = true;
  }

  bool is_kernel(size_t i) const {
    const uint32_t section = section_of(i);
    return ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && (symbols[i].st_other & kOtherKernel) &&
           section > 0 && section < sections.size();
  }
  bool is_variable(size_t i) const {
    const uint32_t section = section_of(i);
    if (ELF64_ST_TYPE(symbols[i].st_info) != STT_OBJECT || section == 0 ||
        section >= sections.size())
      return false;
    const std::string_view in = section_name(sections[section]);
    return starts_with(in, ".nv.global") || in == ".nv.constant3";
  }

  void read_resources() {
    for (const Elf64_Shdr& section : sections) {
      const std::string_view name = section_name(section);
      if (section.sh_type == kTypeInfo && name == ".nv.info") read_image_info(contents(section));
      if (section.sh_type == kTypeCallGraph) read_calls(contents(section));
    }
    for (const Elf64_Shdr& section : sections) {
      const std::string_view name = section_name(section);
      KernelInfo* kernel = kernel_at(section.sh_info);
      if (!kernel) continue;
      if (section.sh_type == kTypeInfo && starts_with(name, ".nv.info.")) {
        read_kernel_info(contents(section), kernel);
      } else if (starts_with(name, ".nv.shared.")) {
        uint64_t bytes = section.sh_size;
        if (out->sm >= kFirstSmWithSystemShared)
          bytes -= std::min<uint64_t>(bytes, kSystemSharedBytes);
        kernel->static_shared_bytes = static_cast<uint32_t>(bytes);
      }
    }
  }

  // Pairs of symbols in four lists, each behind a pair of 0 and the list's negative number: -1 and
  // -4, caller and callee; -2, functions whose address is taken; -3, functions that call through an
  // address (as NCCL's kernels call theirs). Read off what nvlink 13.0 writes for
  // tests/data/image/functions.cu.
  void read_calls(Bytes section) {
    if (!out->uses_printf && !out->uses_assert && !out->uses_malloc) return;
    std::vector<Call> calls(section.data ? section.size / sizeof(Call) : 0);
    if (calls.empty()) return;
    std::memcpy(calls.data(), section.data, calls.size() * sizeof(Call));
    // Who calls through an address may reach all whose address is taken: these share a node, behind
    // the symbols.
    const auto anyone = static_cast<uint32_t>(symbols.size());
    uint32_t list = kDirectCalls;
    for (Call& call : calls) {
      if (call.caller == 0 && call.callee >= kIndirectPairs)
        list = call.callee;
      else if (list == kAddressTaken)
        call = {anyone, call.caller};
      else if (list == kIndirectCalls)
        call.callee = anyone;
    }
    mark_callers(calls, {kPrintf, kAssertion}, &KernelInfo::calls_reporter);
    if (out->uses_malloc) mark_callers(calls, {kMalloc}, &KernelInfo::calls_malloc);
  }
  // Marks the kernels that reach one of the device runtime's functions.
  void mark_callers(const std::vector<Call>& calls,
                    std::initializer_list<std::string_view> functions, bool KernelInfo::*mark) {
    std::vector<bool> reaches(symbols.size() + 1);
    for (size_t i = 0; i < symbols.size(); ++i)
      for (std::string_view name : functions)
        reaches[i] = reaches[i] || runtime_function(i) == name;
    // Backwards along the calls until nothing changes; most lists are one call deep. The bound is
    // for hostile ones.
    bool changed = true;
    for (int pass = 0; changed && pass < kDeepestCall; ++pass) {
      changed = false;
      for (const Call& call : calls) {
        if (call.caller >= reaches.size() || call.callee >= reaches.size() ||
            reaches[call.caller] || !reaches[call.callee])
          continue;
        reaches[call.caller] = changed = true;
        if (KernelInfo* kernel = kernel_by_symbol(call.caller)) kernel->*mark = true;
      }
    }
  }

  void read_image_info(Bytes section) {
    each_record(section, [&](const Record& record, Bytes payload) {
      uint32_t pair[2];
      if (record.format != kFormatSized || !payload.read(0, &pair)) return;
      KernelInfo* kernel = kernel_by_symbol(pair[0]);
      if (!kernel) return;
      if (record.attribute == kAttrRegisters)
        kernel->registers = static_cast<int32_t>(std::min<uint32_t>(pair[1], 0xffff));
      if (record.attribute == kAttrFrameSize || record.attribute == kAttrMinStackSize)
        kernel->local_bytes = std::max(kernel->local_bytes, pair[1]);
    });
  }

  void read_kernel_info(Bytes section, KernelInfo* kernel) {
    const size_t first_param = out->params.size();
    std::vector<std::pair<uint16_t, ParamInfo>> found;
    each_record(section, [&](const Record& record, Bytes payload) {
      uint32_t triple[3];
      switch (record.attribute) {
        case kAttrExplicitCluster: kernel->explicit_cluster = true; break;
        case kAttrParamBytes: kernel->param_bytes = record.value; break;
        case kAttrBarriers: kernel->barriers = record.value & 0xff; break;
        case kAttrMaxClusterRank:
          if (payload.read(0, &triple[0])) kernel->max_cluster_rank = clamped(triple[0]);
          break;
        case kAttrParamInfo:
        case kAttrParamInfo2: {
          uint16_t words[6];
          if (!payload.read(0, &words)) break;
          const uint32_t packed = words[4] | static_cast<uint32_t>(words[5]) << 16;
          found.push_back(
              {words[2], {words[3], record.attribute == kAttrParamInfo ? packed >> 18 : words[4]}});
          break;
        }
        case kAttrMaxThreads:
        case kAttrRequiredBlock:
        case kAttrCtaPerCluster:
          if (!payload.read(0, &triple)) break;
          if (record.attribute == kAttrMaxThreads) kernel->max_threads = product(triple);
          for (int i = 0; i < 3; ++i) {
            if (record.attribute == kAttrRequiredBlock)
              kernel->required_block[i] = clamped(triple[i]);
            if (record.attribute == kAttrCtaPerCluster)
              kernel->required_cluster[i] = clamped(triple[i]);
          }
          break;
        default: break;
      }
    });
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [ordinal, param] : found) out->params.push_back(param);
    // The vector still grows: finish() makes the views.
    param_ranges.push_back(
        {static_cast<size_t>(kernel - out->kernels.data()), first_param, found.size()});
  }

  static int32_t clamped(uint32_t value) {
    return static_cast<int32_t>(std::min<uint32_t>(value, 1u << 30));
  }
  static int32_t product(const uint32_t (&triple)[3]) {
    uint64_t value = 1;
    for (uint32_t factor : triple)
      value = std::min<uint64_t>(value * std::max<uint32_t>(factor, 1), 1u << 20);
    return static_cast<int32_t>(value);
  }

  void finish() {
    out->params.shrink_to_fit();
    for (const ParamRange& range : param_ranges)
      out->kernels[range.kernel].params = {out->params.data() + range.first, range.count};
    auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::stable_sort(out->kernels.begin(), out->kernels.end(), by_name);
    std::stable_sort(out->globals.begin(), out->globals.end(), by_name);
    out->kernels.shrink_to_fit();
    out->globals.shrink_to_fit();
  }
};

template <class T>
const T* find_by_name(const std::vector<T>& sorted, std::string_view name) {
  const auto at =
      std::lower_bound(sorted.begin(), sorted.end(), name,
                       [](const T& item, std::string_view key) { return item.name < key; });
  return at != sorted.end() && at->name == name ? &*at : nullptr;
}

}  // namespace

const KernelInfo* CodeInfo::kernel(std::string_view name) const {
  return find_by_name(kernels, name);
}
const GlobalInfo* CodeInfo::global(std::string_view name) const {
  return find_by_name(globals, name);
}

uint64_t elf_image_bytes(Bytes image) {
  Elf64_Ehdr header;
  if (!header_of(image, &header)) return 0;
  const uint64_t count = section_count(image, header);
  uint64_t end = std::max<uint64_t>(sizeof header,
                                    header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize);
  end = std::max<uint64_t>(end, header.e_shoff + count * header.e_shentsize);
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Shdr section;
    if (!image.read(header.e_shoff + i * header.e_shentsize, &section)) return 0;
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (section.sh_size > UINT64_MAX - section.sh_offset) return 0;
    end = std::max<uint64_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

bool elf_architecture(Bytes image, int* sm, ArchSuffix* suffix) {
  Elf64_Ehdr header;
  if (!header_of(image, &header)) return false;
  *suffix = ArchSuffix::kNone;
  if (header.e_ident[EI_ABIVERSION] <= kAbiOld) {
    *sm = header.e_flags & 0xff;
    if (header.e_flags & kOldArchSpecific) *suffix = ArchSuffix::kArchSpecific;
    return true;
  }
  *sm = header.e_flags >> 8 & 0xff;
  const uint64_t count = section_count(image, header);
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Shdr section;
    if (!image.read(header.e_shoff + i * header.e_shentsize, &section) ||
        section.sh_type != kTypeCompat)
      continue;
    // Record 9 is 1 in what nvcc builds for sm_90a, sm_100a and so on, and 0 otherwise.
    each_record(image.piece(section.sh_offset, section.sh_size), [&](const Record& record, Bytes) {
      if (record.attribute == 9 && (record.value & 0xff) == 1) *suffix = ArchSuffix::kArchSpecific;
    });
  }
  return true;
}

int parse_cubin(Bytes image, CodeInfo* out) {
  if (image.size == Bytes::kUnbounded) return kInvalidImage;
  try {
    Parser parser;
    parser.image = image;
    parser.out = out;
    return parser.parse();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace tonnage::image
