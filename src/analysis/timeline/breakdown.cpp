#include "analysis/timeline/breakdown.h"

#include <algorithm>

namespace tonnage::analysis {
namespace {

// On a real card (`tonnage run --real`) the driver's own memory is measured.
bool has_measured_context(const record::Record& record) {
  const auto at = record.info.find("pass_through");
  return at != record.info.end() && at->second == "true";
}

uint64_t local_memory_at(const Timeline& timeline, int device, uint64_t event) {
  uint64_t bytes = 0;
  for (const LocalMemory& local : timeline.local_memory()) {
    if (local.device == device && local.live_at(event)) bytes += local.size_bytes;
  }
  return bytes;
}

uint64_t managed_at(const Timeline& timeline, int device, uint64_t event) {
  uint64_t bytes = 0;
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device == device && a.kind == abi::DeviceMemoryKind::kManaged && a.live_at(event))
      bytes += a.size_bytes;
  }
  return bytes;
}

// The sample that stands for a share: where allocated is largest (device memory if PyTorch's
// allocator was not used).
size_t peak_sample(const DeviceTimeline& timeline, size_t first, size_t end) {
  size_t best = first;
  auto value = [&](size_t i) {
    const Sample& s = timeline.samples[i];
    return timeline.has_allocator ? s.allocated_bytes : s.device_bytes;
  };
  for (size_t i = first + 1; i < end; ++i) {
    if (value(i) > value(best)) best = i;
  }
  return best;
}

uint64_t time_of(const record::Record& record, uint64_t event) {
  return event < record.events.size() ? record.events[event].time_ns : 0;
}

}  // namespace

Breakdown breakdown_at(const Timeline& timeline, int device, uint64_t event) {
  Breakdown out;
  auto found = timeline.devices().find(device);
  if (found == timeline.devices().end()) return out;
  const DeviceTimeline& samples = found->second;
  const Sample* sample = samples.at(event);
  if (sample == nullptr) return out;

  BreakdownRow rows[kCategoryCount];
  double weight[kCategoryCount] = {};
  timeline.for_each_live(device, event, [&](const Allocation& a) {
    const auto category = static_cast<size_t>(a.category);
    rows[category].bytes += a.requested_bytes;
    if (a.source == CategorySource::kInferred) rows[category].inferred_bytes += a.requested_bytes;
    weight[category] += static_cast<double>(a.requested_bytes) * a.confidence_percent / 100;
    out.requested_bytes += a.requested_bytes;
  });
  for (size_t i = 0; i < kCategoryCount; ++i) {
    rows[i].category = static_cast<Category>(i);
    if (rows[i].bytes > 0 && rows[i].category != Category::kUnknown)
      rows[i].confidence = weight[i] / static_cast<double>(rows[i].bytes);
  }
  auto row = [&](Category category) -> BreakdownRow& {
    return rows[static_cast<size_t>(category)];
  };

  out.allocated_bytes = sample->allocated_bytes;
  out.reserved_bytes = sample->reserved_bytes;
  out.total_is_device = samples.has_device;
  row(Category::kUnknown).confidence = 0;
  // Blocks are never smaller than requests in a consistent record. Where allocator events were lost
  // they may be: then the surplus comes off the unknown part, so that the sum stays what PyTorch
  // counts.
  row(Category::kRounding).bytes =
      out.allocated_bytes >= out.requested_bytes ? out.allocated_bytes - out.requested_bytes : 0;
  uint64_t cached =
      out.reserved_bytes >= out.allocated_bytes ? out.reserved_bytes - out.allocated_bytes : 0;
  uint64_t total = std::max(out.reserved_bytes, out.allocated_bytes);
  if (samples.has_device) {
    const uint64_t context = timeline.context_bytes(device, event);
    const uint64_t held = sample->device_bytes - std::min(context, sample->device_bytes);
    row(Category::kLocalMemory).bytes = std::min(local_memory_at(timeline, device, event), context);
    row(Category::kContext).bytes = context - row(Category::kLocalMemory).bytes;
    for (const Category category : {Category::kContext, Category::kLocalMemory})
      row(category).modelled = !has_measured_context(timeline.record());
    if (held >= total) {
      row(Category::kManaged).bytes = std::min(managed_at(timeline, device, event), held - total);
      row(Category::kOther).bytes = held - total - row(Category::kManaged).bytes;
    } else {
      // Between the driver's free and PyTorch's own event of it: the segment is gone, and it held
      // cached memory only.
      cached -= std::min(cached, total - held);
    }
    total = sample->device_bytes;
  }
  row(Category::kCached).bytes = cached;
  out.total_bytes = total;
  out.pending_bytes = std::min(cached, timeline.pending_bytes(device, event));

  uint64_t sum = 0;
  for (const BreakdownRow& r : rows) sum += r.bytes;
  for (Category category :
       {Category::kUnknown, Category::kTemporary, Category::kActivation, Category::kInput,
        Category::kWorkspace, Category::kKeyValueCache, Category::kBuffer, Category::kParameter,
        Category::kGradient, Category::kOptimizerState}) {
    if (sum <= total) break;
    const uint64_t cut = std::min(row(category).bytes, sum - total);
    row(category).bytes -= cut;
    row(category).inferred_bytes = std::min(row(category).inferred_bytes, row(category).bytes);
    sum -= cut;
  }
  if (sum < total) row(Category::kUnknown).bytes += total - sum;
  for (Category category : kRowOrder) {
    if (row(category).bytes > 0) out.rows.push_back(row(category));
  }
  return out;
}

std::vector<CategoryPoint> category_series(const Timeline& timeline, int device, size_t points) {
  std::vector<CategoryPoint> out;
  auto found = timeline.devices().find(device);
  if (found == timeline.devices().end() || points == 0) return out;
  const auto& samples = found->second.samples;
  const size_t count = std::min(points, samples.size());
  std::vector<uint32_t> moments;
  for (size_t i = 0; i < count; ++i) {
    const size_t at =
        peak_sample(found->second, samples.size() * i / count, samples.size() * (i + 1) / count);
    CategoryPoint point;
    point.event = samples[at].event;
    point.time_ns = time_of(timeline.record(), point.event);
    point.allocated_bytes = samples[at].allocated_bytes;
    point.reserved_bytes = samples[at].reserved_bytes;
    point.device_bytes = samples[at].device_bytes;
    out.push_back(point);
    moments.push_back(point.event);
  }
  // Each allocation adds to the points within its life: mark where it begins and ends, then sum up.
  std::vector<std::vector<int64_t>> change(kCategoryCount, std::vector<int64_t>(count + 1, 0));
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device) continue;
    const auto from = a.before_history
                          ? moments.begin()
                          : std::lower_bound(moments.begin(), moments.end(), a.alloc_event);
    const auto to = std::lower_bound(from, moments.end(), a.free_event);
    if (from == to) continue;
    auto& row = change[static_cast<size_t>(a.category)];
    row[from - moments.begin()] += static_cast<int64_t>(a.requested_bytes);
    row[to - moments.begin()] -= static_cast<int64_t>(a.requested_bytes);
  }
  for (size_t category = 0; category < kCategoryCount; ++category) {
    int64_t now = 0;
    for (size_t i = 0; i < count; ++i) {
      now += change[category][i];
      out[i].by_category[category] = static_cast<uint64_t>(std::max<int64_t>(now, 0));
    }
  }
  for (CategoryPoint& point : out) {
    uint64_t requested = 0;
    for (uint64_t bytes : point.by_category) requested += bytes;
    if (point.allocated_bytes > requested)
      point.by_category[static_cast<size_t>(Category::kRounding)] =
          point.allocated_bytes - requested;
  }
  return out;
}

Series sample_series(const Timeline& timeline, int device, size_t points) {
  Series out;
  auto found = timeline.devices().find(device);
  if (found == timeline.devices().end() || points == 0) return out;
  const DeviceTimeline& samples = found->second;
  out.has_device = samples.has_device;
  const size_t total = samples.samples.size();
  const size_t count = std::min(points, total);
  std::vector<uint32_t> last_event;  // of each share
  for (size_t i = 0; i < count; ++i) {
    const size_t first = total * i / count, end = total * (i + 1) / count;
    const Sample& peak = samples.samples[peak_sample(samples, first, end)];
    uint64_t reserved = 0, device_bytes = 0;
    for (size_t j = first; j < end; ++j) {
      reserved = std::max(reserved, samples.samples[j].reserved_bytes);
      device_bytes = std::max(device_bytes, samples.samples[j].device_bytes);
    }
    out.event.push_back(peak.event);
    out.time_ns.push_back(time_of(timeline.record(), peak.event));
    out.allocated.push_back(peak.allocated_bytes);
    out.reserved.push_back(reserved);
    out.device.push_back(device_bytes);
    last_event.push_back(i + 1 < count ? samples.samples[end].event : UINT32_MAX);
  }
  for (const Step& step : timeline.steps()) {
    if (!step.complete) continue;
    const auto at = std::upper_bound(last_event.begin(), last_event.end(), step.end_event - 1);
    if (at == last_event.end()) continue;
    const auto index = static_cast<uint32_t>(at - last_event.begin());
    if (out.step_marks.empty() || out.step_marks.back() != index) out.step_marks.push_back(index);
  }
  return out;
}

}  // namespace tonnage::analysis
