#include "report/headline.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "analysis/timeline/failures.h"
#include "report/need_text.h"
#include "report/text.h"

namespace tonnage::report {
namespace {

using analysis::Asker;
using analysis::CutReason;
using analysis::DeviceReport;
using analysis::OutOfMemory;
using analysis::Report;
using analysis::Verdict;

// PyTorch's own limit refused: the card had more free than the request needs.
constexpr uint64_t kOwnLimitMarginBytes = 64ull << 20;

bool refused_by_own_limit(const OutOfMemory& oom) {
  return oom.from_pytorch && oom.free_bytes &&
         *oom.free_bytes >= oom.request_bytes + kOwnLimitMarginBytes;
}

std::string card(const DeviceReport& device, const Report& report, const Style& style) {
  if (device.name.empty()) return fmt::format("GPU {}", device.index);
  return style.safe(report.devices.size() > 1
                        ? fmt::format("{} (GPU {})", device.name, device.index)
                        : device.name);
}

// The session's ledger also has the memory that a cut record lacks.
std::string peak_of_card(const DeviceReport& device, const Report& report) {
  uint64_t bytes = device.device ? device.device->bytes : 0;
  const auto index = static_cast<size_t>(device.index);
  if (index < report.end.device_peak_bytes.size() && report.host_refusals.empty())
    bytes = std::max(bytes, report.end.device_peak_bytes[index]);
  if (bytes == 0) return "";
  std::string out = format_bytes(bytes);
  if (device.total_bytes) out += " of " + format_bytes(*device.total_bytes);
  return out;
}

uint64_t count_refusals_gone_on(const Report& report) {
  uint64_t count = 0;
  for (const DeviceReport& device : report.devices) count += device.out_of_memory.size();
  return count;
}

bool is_of_jax_pool(const OutOfMemory& oom) { return oom.library == "jax_pool"; }

// A pool of the program's own is named: the card had room perhaps.
std::string gone_on_text(const Report& report, uint64_t count) {
  const OutOfMemory* last = nullptr;
  bool all_of_jax_pool = true;
  for (const DeviceReport& device : report.devices) {
    for (const OutOfMemory& oom : device.out_of_memory) {
      all_of_jax_pool = all_of_jax_pool && is_of_jax_pool(oom);
      last = &oom;
    }
  }
  if (last != nullptr && all_of_jax_pool) {
    const std::string bytes = format_bytes(last->request_bytes);
    return count == 1
               ? fmt::format("JAX's allocator refused {}", bytes)
               : fmt::format("JAX's allocator refused {} requests, {} at last", count, bytes);
  }
  return count == 1 ? "one request was refused" : fmt::format("{} requests were refused", count);
}

const OutOfMemory* ending_refusal(const DeviceReport& device) {
  for (auto oom = device.out_of_memory.rbegin(); oom != device.out_of_memory.rend(); ++oom) {
    if (oom->ended) return &*oom;
  }
  return nullptr;
}

std::string host_sentence(const analysis::HostRefusal& refusal, const Style& style);

std::string fits_line(const DeviceReport& device, const Report& report, const Style& style) {
  const bool at_most = report.verdict == Verdict::kFitsAtMost;
  std::string out = fmt::format(
      "{}: {} {} of {}, {} to spare", report.stopped ? "Fits so far" : "Fits",
      at_most ? "at most" : "peak", format_bytes(device.device->bytes),
      format_bytes(*device.total_bytes), format_bytes(device.headroom_bytes.value_or(0)));
  if (report.devices.size() > 1) {
    out += fmt::format(" on GPU {}, the most used of {} GPUs", device.index, report.devices.size());
  } else if (!device.name.empty()) {
    out += " on " + style.safe(device.name);
  }
  if (device.peak_of_steps)
    out += fmt::format("; the peak comes after the last step, the steps need {}",
                       format_bytes(*device.peak_of_steps));
  if (report.stopped) out += "; then the command was stopped, as asked";
  if (const uint64_t count = count_refusals_gone_on(report); count > 0)
    out += fmt::format("; {}, and the command went on", gone_on_text(report, count));
  if (!report.host_refusals.empty())
    out += fmt::format("; {}, and the command went on",
                       host_sentence(report.host_refusals.back(), style));
  return out;
}

std::string does_not_fit_line(const DeviceReport& device, const Report& report,
                              const Style& style) {
  const std::string which = card(device, report, style);
  const OutOfMemory* oom = ending_refusal(device);
  if (oom == nullptr)
    return fmt::format("Does not fit: the peak is {} on {}", peak_of_card(device, report), which);
  std::string out = fmt::format("Does not fit on {}", which);
  if (device.total_bytes) out += fmt::format(" ({})", format_bytes(*device.total_bytes));
  out += ": " + refusal_sentence(*oom, style);
  if (analysis::succeeded(report.end))
    out += "; the command caught the error, did nothing more on the GPU and exited with 0";
  if (const std::string need = need_text(report); !need.empty())
    out += fmt::format(". It needs {} there", need);
  return out;
}

// "this machine's limit on address space (ulimit -v, 19.07 GiB) refused 4.00 GiB of device memory".
std::string host_sentence(const analysis::HostRefusal& refusal, const Style& style) {
  const std::string limit =
      refusal.limit_bytes > 0 ? ", " + format_bytes(refusal.limit_bytes) : std::string();
  if (refusal.limit == "cgroup_memory")
    return fmt::format("this machine's limit on memory (cgroup{}) ended it", limit);
  std::string out;
  if (refusal.limit == "pinned_memory") {
    out = fmt::format("this machine{} refused {} of pinned memory",
                      limit.empty() ? limit : " (it has " + limit.substr(2) + ")",
                      format_bytes(refusal.request_bytes));
  } else {
    out = refusal.limit_bytes > 0
              ? fmt::format("this machine's limit on address space (ulimit -v{})", limit)
              : std::string("this machine, which has no address space left,");
    out += fmt::format(" refused {} of device memory", format_bytes(refusal.request_bytes));
  }
  if (!refusal.moment) return out;
  analysis::Site lines;
  lines.line = refusal.moment->site.line;
  lines.user_line = refusal.moment->site.user_line;
  if (const std::string place = style.site(lines); !place.empty()) out += ", at " + place;
  return out;
}

const analysis::HostRefusal* ending_host_refusal(const Report& report) {
  const auto found =
      std::find_if(report.host_refusals.rbegin(), report.host_refusals.rend(),
                   [](const analysis::HostRefusal& refusal) { return refusal.ended; });
  return found == report.host_refusals.rend() ? nullptr : &*found;
}

std::string failed_line(const DeviceReport* device, const Report& report, const Style& style) {
  std::string out = fmt::format("The command failed ({}) before its memory could be judged",
                                exit_text(report.end));
  if (const analysis::HostRefusal* host = ending_host_refusal(report); host != nullptr)
    out += ": " + host_sentence(*host, style) + "; the card is not the reason";
  else if (const std::string error = error_text(report, style); !error.empty())
    out += ": " + error;
  const std::string peak = device != nullptr ? peak_of_card(*device, report) : "";
  return out + (peak.empty() ? "; no GPU memory was used" : "; the peak until then is " + peak);
}

std::string cut_reason(const Report& report) {
  switch (report.cut) {
    case CutReason::kNoEnd: return "the record ends before the command did";
    case CutReason::kLostParts: return "a part of the record is missing";
    case CutReason::kKilled: return "the command was killed by " + exit_text(report.end);
    case CutReason::kStoppedEarly:
      return "the command was stopped, as asked, before two steps were done";
    case CutReason::kNone: break;
  }
  return "the record is not complete";
}

std::string cut_line(const DeviceReport* device, const Report& report) {
  std::string out = "No verdict: " + cut_reason(report);
  const std::string peak = device != nullptr ? peak_of_card(*device, report) : "";
  return peak.empty() ? out : fmt::format("{}; at least {} were in use", out, peak);
}

}  // namespace

const DeviceReport* leading_device(const Report& report) {
  const DeviceReport* best = nullptr;
  const auto rank = [](const DeviceReport& d) {
    const uint64_t peak = d.device ? d.device->bytes : d.reserved ? d.reserved->bytes : 0;
    const double share = d.total_bytes
                             ? static_cast<double>(peak) / static_cast<double>(*d.total_bytes)
                             : static_cast<double>(peak) * 1e-30;
    return (d.verdict == Verdict::kDoesNotFit ? 10.0 : 0.0) + share;
  };
  for (const DeviceReport& device : report.devices) {
    if (best == nullptr || rank(device) > rank(*best)) best = &device;
  }
  return best;
}

std::string device_verdict_text(const DeviceReport& device) {
  const std::string spare =
      device.headroom_bytes ? format_bytes(*device.headroom_bytes) + " to spare" : std::string();
  switch (device.verdict) {
    case Verdict::kFits: return spare;
    case Verdict::kFitsAtMost: return spare.empty() ? spare : "at least " + spare;
    case Verdict::kDoesNotFit: return "does not fit";
    case Verdict::kFailed: return "not judged: the command failed";
    case Verdict::kCut: return "not judged: the record is not complete";
    case Verdict::kNothingUsed: return "nothing was put on it";
    case Verdict::kUnknown: break;
  }
  return "";
}

std::string when_text(const analysis::Moment& moment) {
  std::string out;
  if (moment.step > 0) out = fmt::format("step {}", moment.step);
  if (moment.phase != analysis::Phase::kOther) {
    if (!out.empty()) out += ", ";
    out += analysis::phase_name(moment.phase);
  }
  return out;
}

std::string asker_text(const OutOfMemory& oom, const Style& style) {
  switch (oom.asker) {
    case Asker::kPyTorch: return "PyTorch";
    case Asker::kCublas: return "cuBLAS";
    case Asker::kCudnn: return "cuDNN";
    case Asker::kCufft: return "cuFFT";
    case Asker::kCusolver: return "cuSOLVER";
    case Asker::kCusparse: return "cuSPARSE";
    case Asker::kNccl: return "NCCL";
    case Asker::kCupy: return "CuPy";
    case Asker::kPool: return "a memory pool of the driver";
    case Asker::kContext: return "the driver, for a context,";
    case Asker::kCode: return "the driver, for the code of kernels,";
    case Asker::kStreams: return "the driver, for streams,";
    case Asker::kLocalMemory: return "the driver, for local memory of kernels,";
    case Asker::kGraph: return "the driver, for a graph,";
    case Asker::kOtherLibrary: return oom.library == "jax" ? "JAX" : style.safe(oom.library);
    case Asker::kProgram: break;
  }
  return "the program";
}

std::string refusal_sentence(const OutOfMemory& oom, const Style& style) {
  std::string out;
  if (refused_by_own_limit(oom)) {
    out = fmt::format("PyTorch's own limit (set_per_process_memory_fraction) refused {}",
                      format_bytes(oom.request_bytes));
    if (oom.free_bytes)
      out += fmt::format(" although {} were free on the card", format_bytes(*oom.free_bytes));
  } else if (is_of_jax_pool(oom)) {
    out = fmt::format("JAX's allocator refused {}", format_bytes(oom.request_bytes));
    if (oom.free_bytes)
      out += fmt::format(" when {} of its memory were free", format_bytes(*oom.free_bytes));
  } else {
    out = fmt::format("{} asked for {}", asker_text(oom, style), format_bytes(oom.request_bytes));
    if (oom.free_bytes) out += fmt::format(" when {} were free", format_bytes(*oom.free_bytes));
  }
  const analysis::Site& site = oom.moment.site;
  analysis::Site lines;
  lines.line = site.line;
  lines.user_line = site.user_line;
  if (const std::string place = style.site(lines); !place.empty()) {
    out += ", at " + place;
  } else if (!site.op.empty()) {
    out += ", in " + style.safe(site.op);
  }
  if (const std::string time = when_text(oom.moment); !time.empty()) out += ", in " + time;
  return out;
}

std::string exit_text(const record::CommandEnd& end) {
  if (end.signal == 0) return fmt::format("exit code {}", end.exit_code);
  const char* name = ::strsignal(end.signal);
  return fmt::format("signal {} ({})", end.signal, name != nullptr ? name : "unknown");
}

std::string error_text(const Report& report, const Style& style) {
  // A launcher's error says only that one of its processes failed.
  const auto is_launchers = [](const record::CommandError& error) {
    return error.type.ends_with("ChildFailedError") ||
           error.type.ends_with("ProcessExitedException") ||
           error.type.ends_with("CalledProcessError");
  };
  const auto& errors = report.end.errors;
  auto error = std::find_if_not(errors.begin(), errors.end(), is_launchers);
  if (error == errors.end()) error = errors.begin();
  if (error == errors.end()) return "";
  std::string out = style.safe(error->type);
  if (!error->text.empty()) out += ": " + style.safe(error->text);
  const analysis::Place place{error->file, error->line, error->function};
  if (place.known()) out += ", at " + style.place(place, false);
  return out;
}

std::string headline(const Report& report, const Style& style) {
  const DeviceReport* device = leading_device(report);
  const bool used =
      device != nullptr && (device->device || device->reserved || !device->out_of_memory.empty());
  if (!used && report.verdict != Verdict::kCut) device = nullptr;
  switch (report.verdict) {
    case Verdict::kDoesNotFit:
      if (device != nullptr) return does_not_fit_line(*device, report, style);
      break;
    case Verdict::kFits:
    case Verdict::kFitsAtMost:
      if (device != nullptr && device->device && device->total_bytes)
        return fits_line(*device, report, style);
      break;
    case Verdict::kFailed: return failed_line(device, report, style);
    case Verdict::kCut: return cut_line(device, report);
    case Verdict::kNothingUsed:
    case Verdict::kUnknown: break;
  }
  if (used && device->reserved)
    return fmt::format("Peak {} allocated, {} reserved by PyTorch on {}",
                       format_bytes(device->allocated->bytes),
                       format_bytes(device->reserved->bytes), card(*device, report, style));
  if (used && device->device)
    return fmt::format("Peak {} on {}", format_bytes(device->device->bytes),
                       card(*device, report, style));
  if (!report.end.known) return "No GPU memory was used";
  return report.end.drivers_loaded.value_or(report.processes.size()) == 0
             ? "No GPU memory was used: no program of the command loaded the CUDA driver"
             : "No GPU memory was used: the CUDA driver was loaded, but nothing was put on a "
               "device";
}

}  // namespace tonnage::report
