#include "tonnage/torch/memory_tables.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "memory_trace.h"
#include "tonnage/torch/memory.h"

namespace tonnage {
namespace {

struct Peak {
  int64_t bytes = 0;
  size_t event = 0;  // number of events up to and including the one that reached it
};

// Blocks from before the trace have frees without an allocation: they are not part of it.
Peak find_peak(const std::vector<detail::TraceEvent>& events) {
  std::unordered_map<uint64_t, int64_t> live;
  Peak peak;
  int64_t now = 0;
  for (size_t i = 0; i < events.size(); i++) {
    const auto& e = events[i];
    if (e.size_bytes > 0) {
      live[e.address] = e.size_bytes;
      now += e.size_bytes;
    } else if (auto found = live.find(e.address); found != live.end()) {
      now -= found->second;
      live.erase(found);
    }
    if (now > peak.bytes) peak = {now, i + 1};
  }
  return peak;
}

std::vector<detail::TraceEvent> live_at(const std::vector<detail::TraceEvent>& events,
                                        size_t count) {
  std::unordered_map<uint64_t, detail::TraceEvent> live;
  for (size_t i = 0; i < count; i++) {
    if (events[i].size_bytes > 0)
      live[events[i].address] = events[i];
    else
      live.erase(events[i].address);
  }
  std::vector<detail::TraceEvent> out;
  for (const auto& [address, event] : live) out.push_back(event);
  return out;
}

std::string cell(int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

}  // namespace

MemoryTables::MemoryTables(const ::torch::nn::Module* model, c10::DeviceType device)
    : model_(model), trace_(detail::MemoryTrace::start(device, model, "MemoryTables")) {}

MemoryTables::~MemoryTables() { stop(); }

void MemoryTables::stop() { trace_->stop(); }

int64_t MemoryTables::peak_bytes() const { return find_peak(trace_->events()).bytes; }

std::vector<OperatorMemory> MemoryTables::by_operator() const {
  const auto events = trace_->events();
  std::map<uint32_t, OperatorMemory> rows;
  for (const auto& [id, calls] : trace_->calls()) rows[id].calls = calls;
  for (const auto& e : events) {
    if (e.size_bytes <= 0) continue;
    rows[e.operator_name].allocated_bytes += e.size_bytes;
    rows[e.operator_name].largest_bytes =
        std::max(rows[e.operator_name].largest_bytes, e.size_bytes);
  }
  for (const auto& e : live_at(events, find_peak(events).event))
    rows[e.operator_name].at_peak_bytes += e.size_bytes;
  std::vector<OperatorMemory> out;
  for (auto& [id, row] : rows) {
    row.name = id == 0 ? "(other)" : trace_->name(id);
    out.push_back(row);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.at_peak_bytes, -a.allocated_bytes, a.name) <
           std::tuple(-b.at_peak_bytes, -b.allocated_bytes, b.name);
  });
  return out;
}

std::vector<ModuleMemory> MemoryTables::by_module() const {
  TORCH_CHECK(model_, "MemoryTables::by_module: the tables were made without a model");
  const auto events = trace_->events();
  std::vector<ModuleMemory> out;
  for (const auto& module : model_->named_modules("", /*include_self=*/true)) {
    ModuleMemory row;
    row.name = module.key();
    for (const auto& p : module.value()->parameters(/*recurse=*/false)) {
      row.parameter_bytes += static_cast<int64_t>(p.nbytes());
      if (p.grad().defined()) row.gradient_bytes += static_cast<int64_t>(p.grad().nbytes());
    }
    for (const auto& b : module.value()->buffers(/*recurse=*/false))
      row.buffer_bytes += static_cast<int64_t>(b.nbytes());
    out.push_back(row);
  }
  TORCH_CHECK(out.size() == trace_->modules().size(),
              "MemoryTables::by_module: the model's modules changed since the tables were made");
  out.emplace_back();
  auto row_of = [&](const detail::TraceEvent& e) -> ModuleMemory& {
    return e.module == 0 ? out.back() : out[e.module - 1];
  };
  for (const auto& e : events)
    if (e.size_bytes > 0) row_of(e).allocated_bytes += e.size_bytes;
  for (const auto& e : live_at(events, find_peak(events).event)) {
    row_of(e).at_peak_bytes += e.size_bytes;
    if (e.backward) row_of(e).at_peak_backward_bytes += e.size_bytes;
  }
  return out;
}

std::string MemoryTables::to_string(size_t rows) const {
  char line[256];
  std::string out = "Peak " + format_bytes(peak_bytes()) + " above the beginning\n";
  std::snprintf(line, sizeof line, "%-40s %8s %12s %12s %12s\n", "operator", "calls", "at peak",
                "allocated", "largest");
  out += line;
  size_t shown = 0;
  for (const auto& r : by_operator()) {
    if (shown++ == rows) break;
    std::snprintf(line, sizeof line, "%-40.40s %8lld %12s %12s %12s\n", r.name.c_str(),
                  static_cast<long long>(r.calls), cell(r.at_peak_bytes).c_str(),
                  cell(r.allocated_bytes).c_str(), cell(r.largest_bytes).c_str());
    out += line;
  }
  if (!model_) return out;
  std::snprintf(line, sizeof line, "\n%-40s %12s %12s %12s %12s %12s\n", "module", "at peak",
                "(backward)", "allocated", "parameters", "gradients");
  out += line;
  auto modules = by_module();
  std::stable_sort(modules.begin(), modules.end(),
                   [](const auto& a, const auto& b) { return a.at_peak_bytes > b.at_peak_bytes; });
  shown = 0;
  for (const auto& r : modules) {
    if (r.allocated_bytes == 0 && r.parameter_bytes == 0) continue;
    if (shown++ == rows) break;
    std::snprintf(line, sizeof line, "%-40.40s %12s %12s %12s %12s %12s\n",
                  r.name.empty() ? "(none)" : r.name.c_str(), cell(r.at_peak_bytes).c_str(),
                  cell(r.at_peak_backward_bytes).c_str(), cell(r.allocated_bytes).c_str(),
                  cell(r.parameter_bytes).c_str(), cell(r.gradient_bytes).c_str());
    out += line;
  }
  return out;
}

}  // namespace tonnage
