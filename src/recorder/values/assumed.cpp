#include "recorder/values/assumed.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "recorder/observe/context.h"
#include "recorder/state.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

constexpr size_t kMostMarks =
    4096;  // of a kind; beyond it all are dropped, so that they cost little

// Values by ranges of addresses, which do not overlap.
template <class T>
class Ranges {
 public:
  void set(uint64_t begin, uint64_t end, T value) {
    if (ranges_.size() >= kMostMarks) ranges_.clear();
    erase(begin, end);
    ranges_.emplace(begin, Range{end, std::move(value)});
  }
  void erase(uint64_t begin, uint64_t end) {
    auto at = first_overlap(begin);
    while (at != ranges_.end() && at->first < end) {
      const uint64_t start = at->first;
      Range range = std::move(at->second);
      at = ranges_.erase(at);
      if (range.end > end) ranges_.emplace(end, Range{range.end, range.value});
      if (start < begin) ranges_.emplace(start, Range{begin, std::move(range.value)});
    }
  }
  const T* find(uint64_t address) const {
    auto at = first_overlap(address);
    return at != ranges_.end() && at->first <= address ? &at->second.value : nullptr;
  }
  size_t size() const { return ranges_.size(); }

 private:
  struct Range {
    uint64_t end;
    T value;
  };
  using Map = std::map<uint64_t, Range>;
  static auto overlap(auto& ranges, uint64_t address) {
    auto at = ranges.upper_bound(address);
    if (at != ranges.begin() && std::prev(at)->second.end > address) --at;
    return at;
  }
  typename Map::iterator first_overlap(uint64_t address) { return overlap(ranges_, address); }
  typename Map::const_iterator first_overlap(uint64_t address) const {
    return overlap(ranges_, address);
  }
  Map ranges_;
};

struct Marks {
  struct Mean {
    uint64_t version;
    std::shared_ptr<LazyNumber> number;
  };
  std::mutex mutex;  // also taken under the allocator's lock; nothing is called while it is held
  Ranges<bool> assumed;
  Ranges<Statistic> statistics;
  std::unordered_map<uint64_t, bool> any_at;
  std::unordered_map<uint64_t, Mean> means;  // by the address of the storage
  std::atomic<size_t> size{0};               // of the first three
  std::atomic<size_t> mean_count{0};

  // Pages of 2 MiB with marks: a filter, so that most questions need no lock. Small tensors are in
  // other pages than large ones.
  static constexpr unsigned kPageBits = 21, kSlots = 4096, kMostPages = 64;
  std::atomic<bool> pages[kSlots] = {};

  static std::atomic<bool>& slot(std::atomic<bool>* slots, uint64_t page) {
    return slots[page % kSlots];
  }
  void add_pages(uint64_t address, size_t n) {
    const uint64_t last = (address + n - 1) >> kPageBits;
    for (uint64_t page = address >> kPageBits; page <= last; page++)
      slot(pages, page).store(true, std::memory_order_relaxed);
  }
  void count() {
    const size_t now = assumed.size() + statistics.size() + any_at.size();
    if (now == 0)
      for (auto& page : pages) page.store(false, std::memory_order_relaxed);
    size.store(now, std::memory_order_relaxed);
  }
  bool empty() const { return size.load(std::memory_order_relaxed) == 0; }
  // False: nothing is marked in these bytes.
  bool maybe(uint64_t address, size_t n) {
    if (empty() || n == 0) return false;
    const uint64_t first = address >> kPageBits, last = (address + n - 1) >> kPageBits;
    if (last - first > kMostPages) return true;
    for (uint64_t page = first; page <= last; page++)
      if (slot(pages, page).load(std::memory_order_relaxed)) return true;
    return false;
  }
};

Marks& marks() {
  static Marks* instance = new Marks();
  return *instance;
}

// What is kept of the number at this address.
std::optional<Statistic> statistic_at(uint64_t address) {
  Marks& m = marks();
  if (!m.maybe(address, 1)) return std::nullopt;
  std::lock_guard<std::mutex> lock(m.mutex);
  const Statistic* found = m.statistics.find(address);
  return found ? std::optional<Statistic>(*found) : std::nullopt;
}

}  // namespace

double next_number() {
  static std::atomic<uint64_t> made{0};
  constexpr uint64_t kMost = 1'000'000;
  return 1.0 /
         (1.0 + 1e-3 * static_cast<double>(made.fetch_add(1, std::memory_order_relaxed) % kMost));
}

double LazyNumber::value() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!value_) value_ = next_number();
  return *value_;
}

double Statistic::at(uint64_t address) const {
  const double middle = mean->value();
  constexpr double kDeviationOfWidth = 0.28867513459481287;  // of an even spread: 1 / sqrt(12)
  if (kind == Kind::kDeviation) return middle * kDeviationOfWidth;
  if (kind == Kind::kVariance) return middle * middle / 12;
  const int64_t index = static_cast<int64_t>((address - base) / item) / stride;
  double position = 0.5;
  if (steps > 0)
    position = steps == 1 ? first
                          : first + (static_cast<double>(last) - first) *
                                        static_cast<double>(index % steps) /
                                        static_cast<double>(steps - 1);
  else if (!positions.empty())
    position = positions[static_cast<size_t>(index) % positions.size()];
  return middle * (0.5 + position);
}

bool is_assumed(uint64_t address) {
  Marks& m = marks();
  if (!m.maybe(address, 1)) return false;
  std::lock_guard<std::mutex> lock(m.mutex);
  return m.assumed.find(address) != nullptr;
}

void mark_assumed(uint64_t address, size_t n) {
  Marks& m = marks();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.add_pages(address, n);
  m.assumed.set(address, address + n, true);
  m.count();
}

void keep_statistic(uint64_t address, size_t n, Statistic statistic) {
  Marks& m = marks();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.add_pages(address, n);
  m.statistics.set(address, address + n, std::move(statistic));
  m.count();
}

void keep_any(uint64_t address, bool any) {
  Marks& m = marks();
  std::lock_guard<std::mutex> lock(m.mutex);
  if (m.any_at.size() >= kMostMarks) m.any_at.clear();
  m.add_pages(address, 1);
  m.any_at[address] = any;
  m.count();
}

std::optional<bool> any_of(uint64_t address) {
  Marks& m = marks();
  if (!m.maybe(address, 1)) return std::nullopt;
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.any_at.find(address);
  return found == m.any_at.end() ? std::nullopt : std::optional<bool>(found->second);
}

void forget_assumed(uint64_t address, size_t n) {
  Marks& m = marks();
  if (!m.maybe(address, n)) return;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.assumed.erase(address, address + n);
  m.statistics.erase(address, address + n);
  m.any_at.erase(address);
  m.count();
}

void copy_assumed(uint64_t dst, uint64_t src, size_t n) {
  Marks& m = marks();
  if (!m.maybe(dst, n) && !m.maybe(src, n)) return;
  std::lock_guard<std::mutex> lock(m.mutex);
  std::optional<Statistic> statistic;
  if (const Statistic* found = m.statistics.find(src)) statistic = *found;
  const bool assumed = m.assumed.find(src) != nullptr;
  const auto any = m.any_at.find(src);
  const std::optional<bool> any_value =
      any == m.any_at.end() ? std::nullopt : std::optional<bool>(any->second);
  m.assumed.erase(dst, dst + n);
  m.statistics.erase(dst, dst + n);
  m.any_at.erase(dst);
  if (assumed || statistic || any_value) m.add_pages(dst, n);
  if (assumed) m.assumed.set(dst, dst + n, true);
  if (any_value) m.any_at[dst] = *any_value;
  if (statistic) {
    statistic->base += dst - src;
    m.statistics.set(dst, dst + n, std::move(*statistic));
  }
  m.count();
}

void forget_assumed_block(uint64_t address, size_t n) {
  forget_assumed(address, n);
  Marks& m = marks();
  if (m.mean_count.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.means.erase(address);
  m.mean_count.store(m.means.size(), std::memory_order_relaxed);
}

std::shared_ptr<LazyNumber> mean_of(uint64_t storage_address, uint64_t version) {
  Marks& m = marks();
  std::lock_guard<std::mutex> lock(m.mutex);
  if (m.means.size() >= kMostMarks) m.means.clear();
  Marks::Mean& mean = m.means[storage_address];
  if (!mean.number || mean.version != version) mean = {version, std::make_shared<LazyNumber>()};
  m.mean_count.store(m.means.size(), std::memory_order_relaxed);
  return mean.number;
}

void assume_elements(const at::Tensor& device, bool negative) {
  const uint64_t address = address_of(device), span = span_bytes(device);
  const size_t item = device.element_size();
  if (span == 0 || device::capturing()) return;
  const bool some_known = bridge().content_any(address, span);
  at::Tensor numbers = at::empty(device.sizes(), host_options(at::kDouble));
  at::Tensor kept = at::empty(device.sizes(), host_options(device.scalar_type()));
  auto* number = numbers.mutable_data_ptr<double>();
  auto* bytes = static_cast<char*>(kept.mutable_data_ptr());
  std::vector<bool> known(static_cast<size_t>(device.numel()), false);
  std::optional<double> common;  // of elements that nothing is kept of
  const bool few = for_each_run(device, [&](int64_t offset, int64_t run, int64_t n) {
    for (int64_t i = 0; i < run; i++) {
      const uint64_t at = address + static_cast<uint64_t>(offset + i) * item;
      const auto index = static_cast<size_t>(n * run + i);
      number[index] = 0;
      known[index] = some_known && bridge().content_get(at, bytes + index * item, item);
      if (known[index]) continue;
      if (const auto statistic = statistic_at(at)) {
        number[index] = statistic->at(at);
        continue;
      }
      if (!common) common = negative ? -next_number() : next_number();
      number[index] = *common;
    }
  });
  if (!few) return;
  at::Tensor values = numbers.to(device.scalar_type());
  auto* out = static_cast<char*>(values.mutable_data_ptr());
  for (size_t i = 0; i < known.size(); i++)
    if (known[i]) std::memcpy(out + i * item, bytes + i * item, item);
  assume(device, values);
}

void assume(const at::Tensor& device, const at::Tensor& value) {
  if (store(device, value)) mark_assumed(address_of(device), span_bytes(device));
}

void assume_bool(const at::Tensor& device, bool value) {
  assume(device, at::empty(device.sizes(), host_options(device.scalar_type())).fill_(value));
}

void note_unknown_read(uint64_t address, size_t n) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kUnknownRead;
  event.address = address;
  event.size_bytes = n;
  fill_context(&event);
  bridge().emit(&event);
}

}  // namespace tonnage::recorder
