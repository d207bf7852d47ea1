#include "analysis/diagnosis/other_contexts.h"

#include <map>

#include "analysis/diagnosis/finding_parts.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

// What one process holds on one device.
struct Held {
  uint64_t context = 0, reserved = 0;
  Site site;  // of its first tensor there
};

using HeldByProcess = std::map<uint32_t, std::map<int, Held>>;

HeldByProcess read_held(const Timeline& timeline) {
  HeldByProcess held;
  for (const auto& [key, peak] : timeline.processes())
    held[key.first][key.second].reserved = peak.reserved;
  for (const MemoryEvent& event : timeline.record().events) {
    if (event.kind == EventKind::kContext)
      held[event.process][event.device].context += event.size_bytes;
    if (event.kind != EventKind::kAlloc) continue;
    Held& entry = held[event.process][event.device];
    if (!entry.site.line.known()) entry.site = timeline.stacks().site(event);
  }
  return held;
}

// Where a process has most of what PyTorch reserved; -1: nowhere.
int own_device(const std::map<int, Held>& devices) {
  int own = -1;
  uint64_t most = 0;
  for (const auto& [device, entry] : devices) {
    if (entry.reserved > most) own = device, most = entry.reserved;
  }
  return own;
}

}  // namespace

std::vector<Finding> find_other_contexts(const Timeline& timeline) {
  const HeldByProcess held = read_held(timeline);
  const auto& processes = timeline.record().processes;
  std::map<int, uint32_t> owners;  // device -> how many processes have their own memory there
  for (const auto& [process, devices] : held) {
    if (const int own = own_device(devices); own >= 0) ++owners[own];
  }
  struct Guests {
    std::string named;
    uint64_t count = 0, context = 0, reserved = 0;
    Site site;
  };
  std::map<int, Guests> guests;
  for (const auto& [process, devices] : held) {
    const int own = own_device(devices);
    if (own < 0) continue;
    for (const auto& [device, entry] : devices) {
      const bool little = entry.reserved * 2 < devices.at(own).reserved;
      if (device == own || !little || owners.count(device) == 0 ||
          entry.context + entry.reserved == 0)
        continue;
      Guests& here = guests[device];
      ++here.count;
      here.context += entry.context;
      here.reserved += entry.reserved;
      if (entry.site.line.known()) here.site = entry.site;
      const int64_t pid = process < processes.size() ? processes[process].pid : process;
      here.named += here.named.empty() ? "" : ", ";
      here.named +=
          "process " + std::to_string(pid) + " (its own GPU is " + std::to_string(own) + ")";
    }
  }
  std::vector<Finding> out;
  for (const auto& [device, here] : guests) {
    Finding finding;
    finding.kind = FindingKind::kOutside;
    finding.cause = Cause::kOtherProcess;
    finding.device = device;
    finding.confidence = 0.9;
    finding.bytes = here.context + here.reserved;
    finding.title = fact(Statement::kTitleRanksHere);
    finding.text = {
        fact(Statement::kRanksHere, {name(here.named), count(static_cast<uint64_t>(device)),
                                     bytes(here.context), bytes(here.reserved)})};
    if (here.site.line.known()) {
      finding.site = here.site;
      finding.text.push_back(fact(Statement::kRanksFirstTensor, {at(here.site)}));
    }
    finding.advice.push_back(advice(Remedy::kLoadToOwnGpu, {bytes(finding.bytes)}, finding.bytes));
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace tonnage::analysis
