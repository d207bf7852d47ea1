#include "cards/measure.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>

#include "cards/attributes.h"

namespace tonnage::cards {
namespace {

// The driver's interface by hand: the binary is built without cuda.h and runs where there is no
// driver.
constexpr int kBlockScheduling = 4;   // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kNonPortableClusterSizeAllowed =
    14;  // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
constexpr int kSharedPerBlockOptin = 97, kClusterLaunch = 120;

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char pad[4];
  unsigned value[16];
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*name)(char*, int, int);
  int (*total)(size_t*, int);
  int (*attribute)(int*, int, int);
  int (*retain)(void**, int);
  int (*release)(int);
  int (*set_current)(void*);
  int (*load)(void**, const void*);
  int (*unload)(void*);
  int (*function)(void**, void*, const char*);
  int (*set_attribute)(void*, int, int);
  int (*max_clusters)(int*, void*, const LaunchConfig*);
  int (*export_table)(const void**, const void*);
};

template <class F>
bool resolve(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  return out != nullptr;
}

bool load_driver(void* library, Driver& driver) {
  const bool complete = resolve(library, "cuInit", driver.init) &&
                        resolve(library, "cuDriverGetVersion", driver.version) &&
                        resolve(library, "cuDeviceGetCount", driver.count) &&
                        resolve(library, "cuDeviceGetName", driver.name) &&
                        resolve(library, "cuDeviceTotalMem_v2", driver.total) &&
                        resolve(library, "cuDeviceGetAttribute", driver.attribute) &&
                        resolve(library, "cuDevicePrimaryCtxRetain", driver.retain) &&
                        resolve(library, "cuDevicePrimaryCtxRelease_v2", driver.release) &&
                        resolve(library, "cuCtxSetCurrent", driver.set_current) &&
                        resolve(library, "cuModuleLoadData", driver.load) &&
                        resolve(library, "cuModuleUnload", driver.unload) &&
                        resolve(library, "cuModuleGetFunction", driver.function) &&
                        resolve(library, "cuFuncSetAttribute", driver.set_attribute);
  resolve(library, "cuOccupancyMaxActiveClusters", driver.max_clusters);  // since CUDA 11.8
  resolve(library, "cuGetExportTable", driver.export_table);
  return complete;
}

bool is_virtual(const Driver& driver) {
  static constexpr unsigned char kBridge[16] = {'t', 'o', 'n', 'n', 'a', 'g', 'e', '-',
                                                'b', 'r', 'i', 'd', 'g', 'e', 0,   1};
  const void* table = nullptr;
  return driver.export_table && driver.export_table(&table, kBridge) == 0 && table != nullptr;
}

// What only NVML says. All zero where it cannot be asked.
struct NvmlFigures {
  uint64_t total_bytes = 0;
  int power_limit_watts = 0, pcie_generation = 0, pcie_lanes = 0;
};

struct Nvml {
  struct Memory {
    unsigned long long total, free, used;
  };
  int (*by_bus)(const char*, void**) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*generation)(void*, unsigned*) = nullptr;
  int (*width)(void*, unsigned*) = nullptr;
  void* device = nullptr;

  bool open(const char* bus_id) {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)() = nullptr;
    return library && resolve(library, "nvmlInit_v2", init) && init() == 0 &&
           resolve(library, "nvmlDeviceGetHandleByPciBusId_v2", by_bus) &&
           resolve(library, "nvmlDeviceGetMemoryInfo", memory) &&
           resolve(library, "nvmlDeviceGetPowerManagementDefaultLimit", power) &&
           resolve(library, "nvmlDeviceGetMaxPcieLinkGeneration", generation) &&
           resolve(library, "nvmlDeviceGetMaxPcieLinkWidth", width) && by_bus(bus_id, &device) == 0;
  }
  uint64_t used() const {
    Memory m{};
    return memory(device, &m) == 0 ? m.used : 0;
  }
};

// The card's active clusters by size; [0] unused; empty if this driver or card cannot say.
std::vector<int> ask_clusters(const Driver& driver, const Card& card) {
  if (!driver.max_clusters || attribute_of(card, kClusterLaunch) == 0) return {};
  const std::string target =
      std::to_string(card.architecture.cc_major) + std::to_string(card.architecture.cc_minor);
  const std::string ptx = ".version 7.8\n.target sm_" +
                          std::string(card.architecture.cc_major == 9 ? target : "90") +
                          "\n.address_size 64\n.visible .entry empty()\n{\nret;\n}\n";
  void *module = nullptr, *function = nullptr;
  if (driver.load(&module, ptx.c_str()) != 0) return {};
  std::vector<int> out;
  const int shared = attribute_of(card, kSharedPerBlockOptin);
  if (driver.function(&function, module, "empty") == 0 &&
      driver.set_attribute(function, kMaxDynamicShared, shared) == 0 &&
      driver.set_attribute(function, kNonPortableClusterSizeAllowed, 1) == 0) {
    out.push_back(0);
    for (unsigned size = 1; size <= static_cast<unsigned>(abi::kMaxClusterSize); ++size) {
      LaunchAttribute attribute{};
      attribute.id = kBlockScheduling;
      attribute.value[0] = size;
      attribute.value[1] = attribute.value[2] = 1;
      LaunchConfig config{};
      config.grid[0] = size;
      config.grid[1] = config.grid[2] = 1;
      config.block[0] = 32;
      config.block[1] = config.block[2] = 1;
      config.shared_bytes = static_cast<unsigned>(shared);
      config.attributes = &attribute;
      config.attribute_count = 1;
      int clusters = 0;
      out.push_back(driver.max_clusters(&clusters, function, &config) == 0 ? clusters : 0);
    }
  }
  driver.unload(module);
  return out;
}

std::string key_from(const std::string& name) {
  std::string out;
  for (char c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (word)
      out += c;
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  if (out.rfind("nvidia-", 0) == 0) out.erase(0, 7);
  return out.substr(0, 50) + "-measured";
}

// The catalogue's card that is most like this one: the same name and about as much memory, else the
// same capability.
const Card* most_like(const Catalogue& catalogue, const std::string& name, uint64_t total,
                      int major, int minor) {
  const Card* best = nullptr;
  double best_distance = 0;
  for (const Card& card : catalogue.cards()) {
    if (card.architecture.cc_major != major || card.architecture.cc_minor != minor) continue;
    const double distance =
        std::abs(std::log(static_cast<double>(card.total_bytes) / static_cast<double>(total))) +
        (card.name == name ? 0 : 10);
    if (!best || distance < best_distance) {
      best = &card;
      best_distance = distance;
    }
  }
  return best;
}

void spread_evenly(Card* card) {
  card->sms_per_group.clear();
  for (int left = card->sms; left > 0;) {
    const int take = std::min(left, std::max(16, (card->sms + 31) / 32));
    card->sms_per_group.push_back(take);
    left -= take;
  }
}

}  // namespace

std::vector<int> groups_from_clusters(const std::vector<int>& clusters) {
  std::vector<int> left = clusters, groups;
  for (int size = static_cast<int>(clusters.size()) - 1; size >= 1; --size) {
    while (left[static_cast<size_t>(size)] > 0) {
      if (groups.size() == 1024) return {};
      groups.push_back(size);
      for (int k = 1; k <= size; ++k) left[static_cast<size_t>(k)] -= size / k;
    }
  }
  const bool exact = std::all_of(left.begin(), left.end(), [](int n) { return n == 0; });
  return exact ? groups : std::vector<int>();
}

namespace {

// A device of a real driver, and what its card is written down as.
class Measurement {
 public:
  Measurement(const Driver& driver, int index, const Card& like, const std::string& name,
              uint64_t total_bytes)
      : driver_(driver), index_(index), like_(like), total_bytes_(total_bytes) {
    card_ = like;
    same_name_ = like.name == name;
    card_.name = name;
    int version = 0;
    driver_.version(&version);
    by_ = "measured: tonnage gpus --measure, driver with CUDA " + std::to_string(version / 1000) +
          "." + std::to_string(version % 1000 / 10);
  }

  MeasuredCard run() {
    begin_card();
    read_attributes();
    set_figures();
    if (!same_name_) scale_figures();
    Nvml nvml;
    const bool have_nvml = nvml.open(bus_id_);
    const uint64_t used_before = have_nvml ? nvml.used() : 0;
    void* context = nullptr;
    const bool have_context =
        driver_.retain(&context, index_) == 0 && driver_.set_current(context) == 0;
    if (have_nvml)
      ask_nvml(nvml, used_before, have_context);
    else
      assume_nvml();
    card_.nvml_total_bytes = std::max<uint64_t>(card_.nvml_total_bytes, card_.total_bytes);
    set_groups(have_context ? groups_from_clusters(ask_clusters(driver_, card_))
                            : std::vector<int>());
    drop_known_attributes();
    if (have_context) driver_.release(index_);
    return std::move(out_);
  }

 private:
  void begin_card() {
    const std::string source =
        (same_name_ ? "data sheet: as the catalogue's " : "estimated: as the catalogue's ") +
        like_.key;
    card_.key = key_from(card_.name);
    card_.aliases.clear();
    card_.mig.clear();
    card_.origin = "measured";
    card_.sources = {{"", source}};
  }

  void read_attributes() {
    card_.attributes.clear();
    for (int i = 1; i <= kLastAttribute; ++i) {
      int value = 0;
      if (driver_.attribute(&value, i, index_) == 0) card_.attributes[i] = value;
    }
    // The session gives a place on the bus; the architecture answers its own numbers.
    snprintf(bus_id_, sizeof bus_id_, "%08x:%02x:%02x.0",
             static_cast<unsigned>(card_.attributes[kPciDomainId]),
             static_cast<unsigned>(card_.attributes[kPciBusId]),
             static_cast<unsigned>(card_.attributes[kPciDeviceId]));
    for (const int place : {kPciBusId, kPciDeviceId, kPciDomainId}) card_.attributes.erase(place);
  }

  void set_figures() {
    card_.sms = attribute_of(card_, kMultiprocessorCount);
    card_.sm_clock_khz = attribute_of(card_, kClockRate);
    card_.total_bytes = total_bytes_;
    card_.memory_clock_khz = attribute_of(card_, kMemoryClockRate);
    card_.memory_bus_bits = attribute_of(card_, kMemoryBusWidth);
    card_.l2_bytes = static_cast<uint64_t>(attribute_of(card_, kL2CacheSize));
    for (const char* path : {"name", "sms", "attributes", "sm_clock_khz", "memory.total_bytes",
                             "memory.clock_khz", "memory.bus_bits", "memory.l2_bytes"})
      card_.sources[path] = by_;
  }

  // Of a card that the catalogue does not have: from the one that is most like it.
  void scale_figures() {
    card_.memory_bytes_per_s = 2.0 * card_.memory_clock_khz * 1000.0 * card_.memory_bus_bits / 8;
    card_.sources["memory.bytes_per_s"] = "derived: 2 x memory clock x bus width / 8";
    for (auto& [type, rate] : card_.peak)
      rate *= static_cast<double>(card_.sms) / std::max(1, like_.sms);
    card_.nominal_bytes = (total_bytes_ + (1ull << 30) - 1) >> 30 << 30;
    out_.missing.push_back("peak");
  }

  void ask_nvml(const Nvml& nvml, uint64_t used_before, bool have_context) {
    Nvml::Memory memory{};
    unsigned power = 0, generation = 0, width = 0;
    if (nvml.memory(nvml.device, &memory) == 0) card_.nvml_total_bytes = memory.total;
    card_.sources["memory.nvml_total_bytes"] = by_;
    if (nvml.power(nvml.device, &power) == 0 && power >= 1000) {
      card_.power_limit_watts = static_cast<int>(power / 1000);
      card_.sources["power_limit_watts"] = by_;
    }
    if (nvml.generation(nvml.device, &generation) == 0 && nvml.width(nvml.device, &width) == 0 &&
        generation && width) {
      card_.pcie_generation = static_cast<int>(generation);
      card_.pcie_lanes = static_cast<int>(width);
      card_.sources["host_link.pcie_generation"] = card_.sources["host_link.pcie_lanes"] = by_;
    }
    if (have_context && nvml.used() > used_before + (16ull << 20)) {
      card_.context_bytes = nvml.used() - used_before;
      card_.sources["context_bytes"] =
          by_ + "; the growth of NVML's used memory when a context is made";
    } else {
      out_.missing.push_back("context_bytes");
    }
  }

  void assume_nvml() {
    card_.nvml_total_bytes = total_bytes_ + (like_.nvml_total_bytes - like_.total_bytes);
    card_.sources["memory.nvml_total_bytes"] =
        "estimated: NVML does not answer; as much more as on the catalogue's " + like_.key;
    out_.missing.insert(out_.missing.end(),
                        {"memory.nvml_total_bytes", "power_limit_watts", "context_bytes"});
  }

  void set_groups(const std::vector<int>& groups) {
    if (!groups.empty() && groups.size() <= 32) {
      card_.sms_per_group = groups;
      card_.sources["sms_per_group"] = by_ + "; from the active clusters of every cluster size";
      return;
    }
    const bool other_sms = card_.sms != like_.sms;
    if (other_sms) spread_evenly(&card_);
    card_.sources["sms_per_group"] =
        "estimated: " +
        std::string(other_sms ? "spread evenly" : "as the catalogue's " + like_.key);
    if (card_.architecture.largest_cluster > 0) out_.missing.push_back("sms_per_group");
  }

  // Of the attributes only those stay that the architecture and the figures do not answer already.
  void drop_known_attributes() {
    const std::map<int, int32_t> own = card_.attributes;
    for (const auto& [number, value] : own) {
      card_.attributes.erase(number);
      if (attribute_of(card_, number) != value) card_.attributes[number] = value;
    }
  }

  const Driver& driver_;
  const int index_;
  const Card& like_;
  const uint64_t total_bytes_;
  bool same_name_ = false;
  char bus_id_[32] = "";
  std::string by_;
  MeasuredCard out_;
  Card& card_ = out_.card;
};

// A driver that answers, with this device; `out` is filled.
Result<void> start_driver(const std::string& library_name, int index, Driver& out) {
  void* library = dlopen(library_name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return Error{ErrorCode::kNotFound, "there is no NVIDIA driver on this machine", library_name,
                 "Measuring needs a real card with its driver; `tonnage gpus` lists the cards that "
                 "need none."};
  }
  if (!load_driver(library, out)) {
    return Error{ErrorCode::kUnsupported,
                 "the driver lacks functions that every driver since CUDA 11 has", library_name,
                 "Update the driver."};
  }
  int devices = 0;
  if (const int code = out.init(0); code != 0 || out.count(&devices) != 0) {
    return Error{ErrorCode::kSystem,
                 "the driver does not start (error " + std::to_string(code) + ")", library_name,
                 "Does nvidia-smi work?"};
  }
  if (is_virtual(out)) {
    return Error{ErrorCode::kUsage, "this is Tonnage's own virtual driver", library_name,
                 "Measure outside of `tonnage run`."};
  }
  if (index < 0 || index >= devices) {
    return Error{ErrorCode::kUsage,
                 "there is no device " + std::to_string(index) + " (the machine has " +
                     std::to_string(devices) + ")",
                 "--measure", ""};
  }
  return {};
}

}  // namespace

Result<MeasuredCard> measure_card(const std::string& driver_library, int index,
                                  const Catalogue& catalogue) {
  Driver driver{};
  if (auto started = start_driver(driver_library, index, driver); !started) return started.error();
  char name[96] = "";
  size_t total = 0;
  driver.name(name, sizeof name, index);
  driver.total(&total, index);
  int major = 0, minor = 0;
  driver.attribute(&major, kComputeMajor, index);
  driver.attribute(&minor, kComputeMinor, index);
  const Card* like = most_like(catalogue, name, total, major, minor);
  if (!like) {
    return Error{ErrorCode::kUnsupported,
                 "no card of compute capability " + std::to_string(major) + "." +
                     std::to_string(minor) + " is in the catalogue",
                 name, "Add its architecture to architectures.json (docs/cards.md)."};
  }
  return Measurement(driver, index, *like, name, total).run();
}

}  // namespace tonnage::cards
