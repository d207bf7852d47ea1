// TensorFlow's and XLA's (JAX's) messages.
#include <algorithm>

#include "sources/messages/log_scan.h"
#include "sources/messages/message_family.h"
#include "sources/messages/message_pattern.h"

namespace tonnage::sources {
namespace {

uint64_t dtype_bytes(std::string_view dtype) {
  if (dtype == "double" || dtype == "int64" || dtype == "uint64" || dtype == "complex64") return 8;
  if (dtype == "float" || dtype == "int32" || dtype == "uint32") return 4;
  if (dtype == "half" || dtype == "bfloat16" || dtype == "int16" || dtype == "uint16") return 2;
  if (dtype == "bool" || dtype == "int8" || dtype == "uint8") return 1;
  if (dtype == "complex128") return 16;
  return 0;
}

// What a TPU's compiler prints behind its message: the parts of the program, and the largest one.
void read_memory_space(std::string_view text, LogOom& oom) {
  for (const char* row : {"hbm usage >= <*>arguments <arg>", "Output size <out>;", "output <out> (",
                          "HLO temp <temp> (",
                          "Program hbm requirement <prog>:", "HLO temp <*>fragmentation (<frag>)",
                          "HBM capacity <cap>:", "Currently allocated: <alloc> (",
                          "heap allocations (without fragmentation) <alloc>"}) {
    LogOom found;
    if (!match_pattern(text, row, found)) continue;
    for (std::optional<LogSize> LogOom::*field :
         {&LogOom::arguments, &LogOom::outputs, &LogOom::temporaries, &LogOom::program,
          &LogOom::fragmentation, &LogOom::capacity, &LogOom::allocated})
      if (found.*field && !(oom.*field)) oom.*field = found.*field;
  }
  LogOom largest;
  if (!match_pattern(text, "Largest program allocations in <*>1. Size: <peak>", largest)) return;
  oom.peak = largest.peak;
  if (match_pattern(text, "1. Size: <*>source_file=\"<detail>\" source_line=<units>", largest) &&
      oom.frames.empty()) {
    LogFrame frame;
    frame.file = largest.detail;
    frame.line = static_cast<uint32_t>(std::min<uint64_t>(largest.units.value_or(0), INT32_MAX));
    oom.frames.push_back(std::move(frame));
  }
}

// XLA's buffer assignment behind the message, and the line of the largest buffer.
void read_buffer_assignment(std::string_view text, LogOom& oom) {
  if (text.find("BufferAssignment") == std::string_view::npos) return;
  for (const char* row : {"parameter allocation: <arg>", "maybe_live_out allocation: <out>",
                          "preallocated temp allocation: <temp>", "total allocation: <prog>",
                          "total fragmentation: <frag>"})
    match_pattern(text, row, oom);
  LogOom buffer;
  if (match_pattern(text, "Buffer 1:<*>Size: <peak><*>source_file=\"<detail>\" source_line=<units>",
                    buffer) &&
      oom.frames.empty()) {
    LogFrame frame;
    frame.file = buffer.detail;
    frame.line = static_cast<uint32_t>(std::min<uint64_t>(buffer.units.value_or(0), INT32_MAX));
    oom.frames.push_back(std::move(frame));
  }
  if (!oom.peak && match_pattern(text, "Buffer 1:<*>Size: <peak>", buffer)) oom.peak = buffer.peak;
}

}  // namespace

bool parse_tensorflow(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (scan.find("OOM when allocating tensor with shape[")) {
    oom.framework = LogFramework::kTensorFlow;
    oom.format = OomFormat::kTensorFlowShape;
    oom.shape = parse_shape(scan.until("]", 400));
    scan.literal("]");
    if (scan.literal(" and type ")) {
      oom.dtype = std::string(scan.until(" \n", 40));
      if (scan.literal(" on ")) {
        const std::string_view device = scan.until(" \n", 200);
        const size_t colon = device.rfind(':');
        if (colon != std::string_view::npos && device.find("GPU:") != std::string_view::npos)
          oom.device = LogScan(device, colon + 1).number();
        if (device.find("GPU") != std::string_view::npos) oom.backend = "CUDA";
        if (device.find("CPU") != std::string_view::npos) oom.backend = "CPU";
      }
      if (scan.literal(" by allocator ")) oom.detail = std::string(scan.until(" \n", 80));
    }
    // The size follows exactly from shape and type; without a type nothing is claimed.
    if (const uint64_t each = dtype_bytes(oom.dtype); each && !oom.shape.empty()) {
      uint64_t bytes = each;
      bool fits = true;
      for (const uint64_t dim : oom.shape)
        fits = fits && !__builtin_mul_overflow(bytes, dim, &bytes);
      if (fits) oom.requested = LogSize{bytes, 0, std::to_string(bytes) + " bytes (shape x type)"};
    }
    return true;
  }
  if (scan.find("ran out of memory trying to allocate ")) {
    const size_t behind = scan.at();
    oom.framework = LogFramework::kTensorFlow;
    oom.format = OomFormat::kTensorFlowBfc;
    oom.requested = scan.size();
    if (!oom.requested) return false;
    if (scan.literal(" (rounded to ")) {
      if (const auto bytes = scan.number()) oom.requested = exact_bytes(*bytes);
      if (scan.find("requested by op ")) oom.detail = std::string(scan.until(" \n", 200));
    }
    scan.seek(0);
    if (scan.find("Allocator (") && scan.at() < behind) {
      const std::string_view allocator = scan.until(")", 80);
      if (allocator.substr(0, 4) == "GPU_") {
        oom.backend = "CUDA";
        oom.device = LogScan(allocator, 4).number();
      }
    }
    const auto statistic = [&](std::string_view name) -> std::optional<LogSize> {
      LogScan field(text, behind);
      if (!field.find(name)) return std::nullopt;
      field.spaces();
      const auto bytes = field.number();
      if (!bytes) return std::nullopt;
      return LogSize{*bytes, 0, std::to_string(*bytes)};
    };
    oom.capacity = statistic("Limit:");
    oom.allocated = statistic("\nInUse:");
    if (!oom.allocated) oom.allocated = statistic(" InUse:");
    oom.peak = statistic("MaxInUse:");
    return true;
  }
  if (scan.find("failed to allocate ")) {
    auto printed = scan.size();
    if (printed && scan.literal(" (")) {
      const auto bytes = scan.number();
      if (bytes && scan.literal(" bytes) from device: CUDA_ERROR_OUT_OF_MEMORY")) {
        oom.framework = LogFramework::kTensorFlow;
        oom.backend = "CUDA";
        oom.format = OomFormat::kTensorFlowDevice;
        oom.requested = exact_bytes(*bytes);
        return true;
      }
    }
  }
  return false;
}

bool parse_jax(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (scan.find("Failed to allocate request for ")) {
    oom.requested = scan.size();
    if (scan.literal(" (")) {
      if (const auto bytes = scan.number()) oom.requested = exact_bytes(*bytes);
      scan.literal("B)");
    }
    if (scan.literal(" on device ordinal ")) oom.device = scan.number();
    oom.framework = LogFramework::kJax;
    oom.format = OomFormat::kXlaRequest;
    return oom.requested.has_value();
  }
  scan.seek(0);
  if (scan.find("Ran out of memory in memory space ")) {
    oom.framework = LogFramework::kJax;
    oom.backend = "TPU";
    oom.format = OomFormat::kXlaMemorySpace;
    oom.detail = std::string(scan.until(". \n", 20));
    if (scan.literal(". Used ")) oom.allocated = scan.size();
    if (scan.literal(" of ")) oom.capacity = scan.size();
    read_memory_space(text, oom);
    return true;
  }
  scan.seek(0);
  if (scan.find("Out of host memory while trying to allocate ")) {
    oom.framework = LogFramework::kJax;
    oom.backend = "CPU";
    oom.format = OomFormat::kXlaHost;
    oom.requested = scan.size();
    return true;
  }
  scan.seek(0);
  if (scan.find("Attempting to reserve ") || scan.find("Attempting to allocate ")) {
    oom.requested = scan.size();
    if (oom.requested && scan.find("That was not possible. There are ")) {
      oom.framework = LogFramework::kJax;
      oom.backend = "TPU";
      oom.format = OomFormat::kXlaReserve;
      oom.free = scan.size();
      read_memory_space(text, oom);
      return true;
    }
    oom.requested.reset();
  }
  scan.seek(0);
  const bool exhausted = scan.find("RESOURCE_EXHAUSTED: ") || scan.find("Resource exhausted: ");
  // XLA's other users (Elixir's EXLA, PyTorch/XLA) print it without the status.
  const bool assigned = text.find("BufferAssignment") != std::string_view::npos;
  if ((exhausted || assigned) && (scan.find("ut of memory while trying to allocate ") ||
                                  scan.find("ut of memory allocating "))) {
    oom.framework = LogFramework::kJax;
    oom.format = OomFormat::kXlaBytes;
    oom.requested = scan.size();
    if (scan.literal(" with allocator ")) {
      const std::string_view allocator = scan.until(" \n", 80);
      oom.detail = std::string(allocator);
      if (scan.literal(" on device ")) oom.device = scan.number();
    }
    if (scan.find("[executable_name='")) oom.detail = std::string(scan.until("'", 200));
    read_buffer_assignment(text, oom);
    return true;
  }
  return false;
}

}  // namespace tonnage::sources
