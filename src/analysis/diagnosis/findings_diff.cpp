#include "analysis/diagnosis/findings_diff.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "analysis/timeline/breakdown.h"

namespace tonnage::analysis {
namespace {

using LineKey = std::tuple<std::string, uint32_t, std::string, Category>;

struct LineValue {
  Site site;
  uint64_t bytes = 0, count = 0;
};

const DeviceReport* device_of(const Explanation& explanation, int index) {
  if (!explanation.report) return nullptr;
  for (const DeviceReport& device : explanation.report->devices) {
    if (device.index == index) return &device;
  }
  return nullptr;
}

std::map<LineKey, LineValue> lines_at_peak(const Explanation& explanation,
                                           const DeviceReport* device) {
  std::map<LineKey, LineValue> lines;
  if (!device || !device->allocated || !explanation.timeline) return lines;
  const Timeline& timeline = *explanation.timeline;
  const auto& events = timeline.record().events;
  timeline.for_each_live(device->index, device->allocated->moment.event, [&](const Allocation& a) {
    const Site site = a.before_history || a.alloc_event >= events.size()
                          ? timeline.stacks().site(a.stack, abi::kNoId, abi::kNoId)
                          : timeline.stacks().site(events[a.alloc_event]);
    LineValue& value = lines[{site.line.file, site.line.line, site.line.function, a.category}];
    if (value.count++ == 0) value.site = site;
    value.bytes += a.requested_bytes;
  });
  return lines;
}

std::optional<uint64_t> bytes_of(const DeviceReport* device, PeakMetric metric) {
  if (!device) return std::nullopt;
  const std::optional<Peak>& peak = metric == PeakMetric::kAllocated  ? device->allocated
                                    : metric == PeakMetric::kReserved ? device->reserved
                                                                      : device->device;
  if (!peak) return std::nullopt;
  return peak->bytes;
}

uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

}  // namespace

const char* peak_metric_name(PeakMetric metric) {
  switch (metric) {
    case PeakMetric::kAllocated: return "allocated";
    case PeakMetric::kReserved: return "reserved";
    case PeakMetric::kDevice: return "device";
  }
  return "allocated";
}

std::optional<uint64_t> peak_of(const Report& report, PeakMetric metric) {
  std::optional<uint64_t> best;
  for (const DeviceReport& device : report.devices) {
    if (const auto bytes = bytes_of(&device, metric)) best = std::max(best.value_or(0), *bytes);
  }
  return best;
}

Diff diff(const Explanation& before, const Explanation& after, size_t max_lines) {
  Diff out;
  out.before = before.source;
  out.after = after.source;
  std::set<int> indices;
  for (const Explanation* side : {&before, &after}) {
    if (!side->report) continue;
    for (const DeviceReport& device : side->report->devices) indices.insert(device.index);
  }
  for (const int index : indices) {
    DeviceDiff entry;
    entry.device = index;
    const DeviceReport* left = device_of(before, index);
    const DeviceReport* right = device_of(after, index);
    for (const PeakMetric metric :
         {PeakMetric::kAllocated, PeakMetric::kReserved, PeakMetric::kDevice}) {
      DiffMetric row{std::string(peak_metric_name(metric)) + "_peak", bytes_of(left, metric),
                     bytes_of(right, metric)};
      if (row.before || row.after) entry.metrics.push_back(std::move(row));
    }
    std::map<Category, std::pair<uint64_t, uint64_t>> categories;
    const auto add = [&](const DeviceReport* device, bool is_after) {
      if (!device || !device->allocated) return;
      for (const BreakdownRow& row : device->allocated->breakdown.rows)
        (is_after ? categories[row.category].second : categories[row.category].first) += row.bytes;
    };
    add(left, false);
    add(right, true);
    for (const Category category : kRowOrder) {
      if (const auto found = categories.find(category); found != categories.end())
        entry.categories.push_back({category, found->second.first, found->second.second});
    }
    std::map<LineKey, DiffLine> lines;
    for (const auto& [key, value] : lines_at_peak(before, left)) {
      DiffLine& line = lines[key];
      line.site = value.site;
      line.category = std::get<3>(key);
      line.before = value.bytes;
      line.count_before = value.count;
    }
    for (const auto& [key, value] : lines_at_peak(after, right)) {
      DiffLine& line = lines[key];
      line.site = value.site;
      line.category = std::get<3>(key);
      line.after = value.bytes;
      line.count_after = value.count;
    }
    for (auto& [key, line] : lines) {
      if (line.before != line.after) entry.lines.push_back(std::move(line));
    }
    std::stable_sort(entry.lines.begin(), entry.lines.end(),
                     [](const DiffLine& a, const DiffLine& b) {
                       return distance(a.before, a.after) > distance(b.before, b.after);
                     });
    if (entry.lines.size() > max_lines) entry.lines.resize(max_lines);
    out.devices.push_back(std::move(entry));
  }
  return out;
}

}  // namespace tonnage::analysis
