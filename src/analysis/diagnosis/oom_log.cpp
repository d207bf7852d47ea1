#include "analysis/diagnosis/oom_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/diagnosis/oom_facts.h"
#include "analysis/timeline/stacks.h"

namespace tonnage::analysis {
namespace {

using sources::LogFrame;
using sources::LogOom;
using sources::LogSize;
using sources::OomFormat;

constexpr uint64_t kOutsideBytes = 2ull << 30;  // a context with its libraries stays below it
constexpr double kSlackShare = 0.08;            // of reserved
constexpr double kSlackSurely = 0.2;            // of reserved: the main reason
constexpr double kHugeShare = 0.25;  // of the card: one tensor that large is the problem itself

uint64_t above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
std::string text_of(const std::optional<LogSize>& size) { return size ? size->text : "?"; }

Advice advice(std::string text, std::optional<uint64_t> saves = std::nullopt,
              std::string setting = "") {
  return {std::move(text), saves, std::move(setting)};
}

// What the traceback tells about where it failed.
struct TraceFacts {
  const LogFrame* user = nullptr;  // innermost line of the user's own
  bool backward = false, optimizer = false, first_state = false, loss = false, evaluation = false,
       loading = false, moving = false;
  bool collects = false;  // predictions of many batches are put together
  bool saving = false;    // a whole state is gathered
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TraceFacts read_frames(const LogOom& oom) {
  TraceFacts facts;
  for (const LogFrame& frame : oom.frames) {
    const FileOwner owner = owner_of(frame.file);
    if (owner == FileOwner::kUser) facts.user = &frame;
    if (contains(frame.file, "torch/autograd/")) facts.backward = true;
    if (contains(frame.file, "torch/optim/")) facts.optimizer = true;
    if (contains(frame.file, "torch/optim/") &&
        (frame.function == "_init_group" || contains(frame.function, "init_state")))
      facts.first_state = true;
    if (contains(frame.function, "cross_entropy") || contains(frame.function, "log_softmax") ||
        contains(frame.function, "nll_loss"))
      facts.loss = true;
    for (const char* word : {"evaluat", "validat", "predict", "test_step", "inference"})
      facts.evaluation |= contains(frame.function, word);
    for (const char* word : {"nested_concat", "pad_and_concatenate", "nested_numpify",
                             "dim_zero_cat", "gather_object", "all_gather_object"})
      facts.collects |= contains(frame.function, word);
    if (contains(frame.function, "save_checkpoint") ||
        contains(frame.function, "_full_state_dict") ||
        contains(frame.function, "_optim_state_dict") || contains(frame.code, "torch.save("))
      facts.saving = true;
    if (contains(frame.function, "load_state_dict") || contains(frame.code, "torch.load("))
      facts.loading = true;
    if (frame.function == "convert" ||
        (frame.function == "_apply" && contains(frame.file, "torch/nn/")))
      facts.moving = true;
  }
  // The code of the last frame only: a line further out may do several things, and the frames below
  // it tell which.
  if (!oom.frames.empty()) {
    const std::string& code = oom.frames.back().code;
    const bool deeper = facts.backward || facts.optimizer || facts.loss;
    if (!deeper && contains(code, ".backward(")) facts.backward = true;
    if (!deeper && !contains(code, ".backward(") &&
        (contains(code, "optimizer.step") || contains(code, "optim.step")))
      facts.optimizer = true;
    if (contains(code, ".cuda(") || contains(code, ".to(")) facts.moving = true;
  }
  return facts;
}

class LogDiagnosis {
 public:
  explicit LogDiagnosis(const LogOom& oom)
      : oom_(oom), figures_(log_figures(oom)), trace_(read_frames(oom)) {}

  std::vector<Finding> run() {
    if (!special()) numbers();
    if (findings_.empty()) unknown();
    findings_.front().primary = true;
    for (Finding& finding : findings_) {
      finding.device =
          oom_.device ? static_cast<int>(std::min<uint64_t>(*oom_.device, INT32_MAX)) : 0;
      if (!finding.site && trace_.user) {
        Site site;
        site.line = {trace_.user->file, trace_.user->line, trace_.user->function};
        site.user_line = site.line;
        finding.site = site;
      }
      Evidence message;
      message.text =
          "line " + std::to_string(oom_.line_number) + " of the log: " + oom_.text.substr(0, 300);
      finding.evidence.push_back(std::move(message));
    }
    return std::move(findings_);
  }

 private:
  Finding& add(Cause cause, std::string title, std::string text, double confidence,
               uint64_t bytes = 0) {
    Finding finding;
    finding.cause = cause;
    finding.title = std::move(title);
    finding.text = std::move(text);
    finding.confidence = confidence;
    finding.bytes = bytes;
    findings_.push_back(std::move(finding));
    return findings_.back();
  }
  void figure(Finding& finding, std::string text, std::optional<uint64_t> bytes = std::nullopt) {
    Evidence evidence;
    evidence.text = std::move(text);
    evidence.bytes = bytes;
    finding.evidence.push_back(std::move(evidence));
  }
  std::string requested() const { return text_of(oom_.requested); }

  // Messages that are of another kind than "PyTorch's allocator found no memory".
  bool special() {
    switch (oom_.format) {
      case OomFormat::kPyTorchTooLarge: {
        Finding& finding = add(Cause::kRequestTooLarge, "More than an exabyte was asked for",
                               "A size came out negative or overflowed: the shape that the failing "
                               "line computes is wrong, not the memory too small.",
                               0.95);
        finding.advice.push_back(advice(
            "Print the shapes at the failing line; look for negative or multiplied dimensions"));
        return true;
      }
      case OomFormat::kHostShared: {
        Finding& finding =
            add(Cause::kHostMemory, "The shared memory of the container is full, not the GPU's",
                "Data-loader workers hand their batches over in /dev/shm, and that is full.", 0.95);
        finding.advice.push_back(advice("A larger /dev/shm for the container", std::nullopt,
                                        "docker run --shm-size=8g (or --ipc=host)"));
        finding.advice.push_back(advice("Fewer data-loader workers or a smaller prefetch_factor"));
        return true;
      }
      case OomFormat::kCpuAllocator:
      case OomFormat::kHostKilled:
      case OomFormat::kHostArray:
      case OomFormat::kXlaHost: {
        Finding& finding =
            add(Cause::kHostMemory, "The host's memory ran out, not the GPU's",
                oom_.requested
                    ? fmt::format("{} of host memory were asked for and refused.", requested())
                    : "The process was killed from outside (signal 9), as the kernel does when the "
                      "host's memory is full.",
                oom_.format == OomFormat::kHostKilled ? 0.7 : 0.95);
        if (oom_.format == OomFormat::kHostArray || trace_.collects)
          finding.advice.push_back(advice(
              fmt::format("Results of a whole data set are collected on the host{}: compute the "
                          "metric batch by batch, or keep the argmax instead of all classes",
                          oom_.requested ? " (" + requested() + ")" : "")));
        finding.advice.push_back(
            advice("Fewer data-loader workers, smaller prefetch, results reduced before they are "
                   "collected on the CPU; a larger container limit"));
        return true;
      }
      case OomFormat::kMps: {
        const uint64_t own = oom_.allocated ? oom_.allocated->bytes : 0,
                       other = oom_.other ? oom_.other->bytes : 0;
        if (other > own) {
          Finding& finding =
              add(Cause::kOutsideAllocator,
                  "Other allocations than PyTorch's tensors fill the unified memory",
                  fmt::format("PyTorch's tensors have {}, other allocations {} of {} allowed.",
                              text_of(oom_.allocated), text_of(oom_.other), text_of(oom_.capacity)),
                  0.9, other);
          finding.kind = FindingKind::kOutside;
          finding.advice.push_back(advice(fmt::format("Close what else uses the memory ({}), and "
                                                      "torch.mps.empty_cache() before large steps",
                                                      text_of(oom_.other)),
                                          other));
        } else {
          Finding& finding =
              add(Cause::kCapacity, "PyTorch's tensors fill what it may use",
                  fmt::format("{} allocated of {} allowed; {} more were asked for.",
                              text_of(oom_.allocated), text_of(oom_.capacity), requested()),
                  0.8, own);
          finding.advice.push_back(advice("A smaller batch or shorter samples"));
        }
        findings_.back().advice.push_back(
            advice("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 only lifts the guard: the system may then "
                   "fail instead"));
        return true;
      }
      case OomFormat::kCudaError:
        add(Cause::kDriverError, "The CUDA driver had no memory",
            "The driver or runtime refused outside PyTorch's allocator (a context, a library, "
            "expandable segments, a wrong device): the message has no figures.",
            0.6)
            .advice = {
            advice("Look with nvidia-smi which processes hold the card before the start"),
            advice("Record a history: torch.cuda.memory._record_memory_history(), then tonnage "
                   "explain the snapshot")};
        return true;
      case OomFormat::kLibraryAllocFailed: {
        Finding& finding =
            add(Cause::kLibrary, fmt::format("{} is an out-of-memory error", oom_.detail),
                "A library could not allocate its handle or workspace: PyTorch's cache and the "
                "program's tensors had left it too little of the card.",
                0.85);
        finding.advice.push_back(
            advice("Treat it as out of memory: a smaller batch, or make the handle early (one "
                   "small matmul on the GPU before the model is loaded)"));
        finding.advice.push_back(
            advice("If it comes at once on an empty card: wrong labels or indices also show up "
                   "here; run once with CUDA_LAUNCH_BLOCKING=1",
                   std::nullopt, "CUDA_LAUNCH_BLOCKING=1"));
        return true;
      }
      case OomFormat::kLibraryNotReady: {
        Finding& finding = add(Cause::kLibrary,
                               fmt::format("{}: most often out of memory in disguise", oom_.detail),
                               "A library could not start, or found no algorithm whose workspace "
                               "fits. Most often the card is full, with PyTorch's cache in it; a "
                               "driver that does not match the library does the same.",
                               0.7);
        finding.advice.push_back(
            advice("Treat it as out of memory first: if it goes away with half the batch, it was"));
        finding.advice.push_back(
            advice("If it comes on an empty card too: the versions of driver and library do not "
                   "match, or an earlier kernel failed (run once with CUDA_LAUNCH_BLOCKING=1)",
                   std::nullopt, "CUDA_LAUNCH_BLOCKING=1"));
        return true;
      }
      case OomFormat::kXlaReserve: {
        Finding& finding =
            add(Cause::kCapacity, "The device's memory is full",
                fmt::format("{} were asked for and {} were free.", requested(), text_of(oom_.free)),
                0.85, oom_.requested ? oom_.requested->bytes : 0);
        const uint64_t missing =
            oom_.requested && oom_.free ? above(oom_.requested->bytes, oom_.free->bytes) : 0;
        finding.advice.push_back(
            advice(fmt::format("At least {} have to go: jax.checkpoint (remat), a smaller batch "
                               "per device, or sharding over more devices",
                               size_text(missing)),
                   missing));
        return true;
      }
      case OomFormat::kNvmlAssert:
        add(Cause::kDriverError, "An out-of-memory error hides behind this assertion",
            "PyTorch ran out of memory, and asking NVML which processes use the card failed (MIG, "
            "containers, Jetson), so that the real message was lost.",
            0.9)
            .advice = {
            advice("Treat it as out of memory; torch.cuda.memory_stats() or a recorded history has "
                   "the figures")};
        return true;
      case OomFormat::kNcclCalloc:
      case OomFormat::kNcclWarn: {
        Finding& finding =
            add(Cause::kNccl, "NCCL could not allocate its buffers",
                oom_.requested ? fmt::format("NCCL asked the driver for {} outside PyTorch's "
                                             "allocator, and the card was full.",
                                             requested())
                               : "NCCL asks the driver itself, outside PyTorch's allocator, and "
                                 "the card was full.",
                0.9, oom_.requested ? oom_.requested->bytes : 0);
        finding.kind = FindingKind::kOutside;
        finding.advice.push_back(
            advice("Leave NCCL room: make the communicators before the cache grows, or cap PyTorch "
                   "with a memory fraction"));
        finding.advice.push_back(
            advice("Fewer process groups and channels: each communicator has its own buffers",
                   std::nullopt, "NCCL_MAX_NCHANNELS=8"));
        return true;
      }
      case OomFormat::kJetson:
        add(Cause::kCapacity, "The shared memory of the board is full",
            fmt::format("The driver could not map {}; CPU and GPU share the memory.", requested()),
            0.8)
            .advice = {advice(
            "Close other programs, use a smaller model or batch, add swap for the CPU's part")};
        return true;
      case OomFormat::kTensorFlowDevice: {
        Finding& finding =
            add(Cause::kHarmless, "TensorFlow tried a large piece first",
                fmt::format("The driver did not give {} in one piece. TensorFlow then tries "
                            "smaller ones: by itself this line is often harmless.",
                            requested()),
                0.7);
        finding.advice.push_back(
            advice("If training fails afterwards, another process has part of the card; "
                   "tf.config.experimental.set_memory_growth takes only what is needed"));
        return true;
      }
      case OomFormat::kTensorFlowShape:
      case OomFormat::kTensorFlowBfc: tensorflow(); return true;
      case OomFormat::kXlaBytes:
      case OomFormat::kXlaRequest:
      case OomFormat::kXlaMemorySpace: jax(); return true;
      default: return false;
    }
  }

  void tensorflow() {
    std::string what;
    for (const uint64_t dim : oom_.shape) what += (what.empty() ? "" : " x ") + std::to_string(dim);
    std::string text =
        what.empty() ? fmt::format("{} were asked for", requested())
                     : fmt::format("A tensor of shape {}{}", what,
                                   oom_.requested ? fmt::format(" and type {} ({})", oom_.dtype,
                                                                size_text(oom_.requested->bytes))
                                                  : "");
    text += what.empty() ? "" : " did not fit";
    if (!oom_.detail.empty()) text += fmt::format(" ({})", oom_.detail);
    text += ".";
    const bool room = oom_.capacity && oom_.allocated && oom_.requested &&
                      above(oom_.capacity->bytes, oom_.allocated->bytes) >= oom_.requested->bytes;
    if (room) {
      const uint64_t free = oom_.capacity->bytes - oom_.allocated->bytes;
      text += fmt::format(" {} of its limit of {} were free, in pieces: fragmentation.",
                          size_text(free), size_text(oom_.capacity->bytes));
      Finding& finding =
          add(Cause::kFragmentation, "Enough is free in TensorFlow's pool, but not in one piece",
              text, 0.8, free);
      finding.advice.push_back(advice("The driver's own pool moves pieces together", free,
                                      "TF_GPU_ALLOCATOR=cuda_malloc_async"));
      return;
    }
    if (oom_.capacity && oom_.allocated)
      text += fmt::format(" {} of {} were in use.", size_text(oom_.allocated->bytes),
                          size_text(oom_.capacity->bytes));
    Finding& finding = add(Cause::kActivations, "A tensor of the model did not fit", text, 0.7,
                           oom_.requested ? oom_.requested->bytes : 0);
    if (!oom_.shape.empty() && oom_.shape.size() >= 2)
      finding.advice.push_back(advice(
          fmt::format("If its first dimension, {}, is the batch: {} takes half of it",
                      oom_.shape[0], std::max<uint64_t>(oom_.shape[0] / 2, 1)),
          oom_.requested ? std::optional<uint64_t>(oom_.requested->bytes / 2) : std::nullopt));
    finding.advice.push_back(
        advice("Mixed precision (tf.keras.mixed_precision) halves most activations"));
  }

  void jax() {
    if (oom_.format == OomFormat::kXlaMemorySpace) {
      const uint64_t over =
          oom_.allocated && oom_.capacity ? above(oom_.allocated->bytes, oom_.capacity->bytes) : 0;
      Finding& finding =
          add(Cause::kCapacity, "The compiled program needs more than the device has",
              fmt::format("The program needs {} of {} in {}: {} too much. It was known when "
                          "compiling; no step ran.",
                          text_of(oom_.allocated), text_of(oom_.capacity), oom_.detail,
                          size_text(over)),
              0.95, over);
      finding.advice.push_back(
          advice(fmt::format("At least {} have to go: jax.checkpoint (remat), a smaller batch per "
                             "device, or sharding over more devices",
                             size_text(over)),
                 over));
      finding.advice.push_back(advice(
          "Gradient accumulation adds a buffer of the gradients' size; it saves activations only"));
      return;
    }
    Finding& finding =
        add(Cause::kCapacity, "The device's memory is full",
            fmt::format("{} more were asked for{}. JAX takes 75 % of the card at its start: "
                        "nvidia-smi does not show how much of it is used.",
                        requested(), oom_.detail.empty() ? "" : " by " + oom_.detail),
            0.7, oom_.requested ? oom_.requested->bytes : 0);
    finding.advice.push_back(
        advice("jax.checkpoint (remat) around the layers, a smaller batch, donated buffers "
               "(donate_argnums)"));
    finding.advice.push_back(advice("If another framework shares the card, give JAX its share",
                                    std::nullopt, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5"));
    finding.advice.push_back(
        advice("compiled.memory_analysis() gives the program's need before it runs"));
  }

  void numbers() {
    if (!oom_.requested) return;
    const uint64_t request = oom_.requested->bytes;
    const uint64_t capacity = oom_.capacity ? oom_.capacity->bytes : 0,
                   free = oom_.free ? oom_.free->bytes : 0;
    const uint64_t slack = figures_.slack.value_or(0), reserved = figures_.reserved.value_or(0);
    if (capacity == 0) return;

    if (figures_.cap_binds) cap(request);
    if (figures_.oversubscribed) {
      Finding& finding = add(
          Cause::kOversubscribed, "More is allocated than the card has",
          fmt::format("{} are allocated on a card of {}: the driver has moved part of it to the "
                      "host's memory (Windows, WSL), which is slow, and now that is full too.",
                      text_of(oom_.allocated), text_of(oom_.capacity)),
          0.9, oom_.allocated->bytes);
      finding.advice.push_back(
          advice(fmt::format(
                     "The program needs {} more than the card has: smaller model, batch or samples",
                     size_text(oom_.allocated->bytes - capacity)),
                 oom_.allocated->bytes - capacity));
      finding.advice.push_back(
          advice("Turn the driver's system-memory fallback off, so that it fails early instead of "
                 "crawling"));
    }
    if (request > capacity) {
      Finding& finding = add(Cause::kRequestTooLarge, "One tensor is larger than the card",
                             fmt::format("{} were asked for at once; the card has {}.", requested(),
                                         text_of(oom_.capacity)),
                             1, request);
      finding.advice.push_back(
          advice(fmt::format("The failing line has to work in at least {} parts",
                             request / std::max<uint64_t>(capacity / 2, 1) + 1),
                 request));
    }
    if (!oom_.allocated) return;  // cut off: what is left proves nothing
    const bool room = oom_.free && free > request + kFreeMarginBytes;
    if (room && !figures_.cap_binds) not_capacity(request, free);
    if (figures_.outside && *figures_.outside > kOutsideBytes &&
        static_cast<double>(*figures_.outside) > 0.1 * static_cast<double>(capacity))
      outside(request, capacity);
    if (!findings_.empty() && findings_.front().cause != Cause::kOtherProcess &&
        findings_.front().cause != Cause::kOutsideAllocator) {
      if (room || figures_.oversubscribed || request > capacity || figures_.cap_binds) return;
    }
    const bool pieces = slack + free >= request && slack >= request / 2;
    const double slack_share =
        reserved > 0 ? static_cast<double>(slack) / static_cast<double>(reserved) : 0;
    if (!pieces || slack_share < kSlackShare) {
      full(request, capacity, slack, free);
    } else if (slack_share >= kSlackSurely || slack >= 3 * request) {
      fragmentation(request, slack, free, reserved);
    } else {
      // It holds this one request and hardly more: the rest of the pass would fail next.
      full(request, capacity, slack, free);
      fragmentation(request, slack, free, reserved);
      findings_.back().confidence = 0.5;
    }
  }

  void cap(uint64_t request) {
    Finding& finding =
        add(Cause::kMemoryFraction, "PyTorch's own limit refused, not the card",
            fmt::format("PyTorch may use {} and has {} reserved; {} more were asked for. {} of the "
                        "card are free.",
                        text_of(oom_.allowed), size_text(figures_.reserved.value_or(0)),
                        requested(), text_of(oom_.free)),
            0.95, oom_.free ? oom_.free->bytes : 0);
    if (oom_.free && oom_.free->bytes > request)
      finding.advice.push_back(
          advice(fmt::format("Raise the fraction: {} are free", text_of(oom_.free)),
                 oom_.free->bytes, "torch.cuda.set_per_process_memory_fraction(1.0)"));
    finding.advice.push_back(
        advice(fmt::format("Within the limit of {}: {} are allocated by tensors",
                           text_of(oom_.allowed), text_of(oom_.allocated))));
  }

  void not_capacity(uint64_t request, uint64_t free) {
    Finding& finding =
        add(Cause::kNotCapacity, "The card had enough free memory",
            fmt::format("{} were asked for and {} were free: the card is not full. A limit of the "
                        "platform refused (a memory fraction that the message does not print, a "
                        "MIG or container limit, Windows' paging file, address space), or the "
                        "figure was taken after something else had let go.",
                        requested(), text_of(oom_.free)),
            0.8, free - request);
    finding.advice.push_back(
        advice("Look for set_per_process_memory_fraction, for a cgroup or MIG slice, and on "
               "Windows for the paging file's size"));
    finding.advice.push_back(advice(
        "Run it alone and watch nvidia-smi: another process may take the memory for a moment"));
    finding.advice.push_back(advice("A smaller batch would not address this"));
  }

  void outside(uint64_t request, uint64_t capacity) {
    const uint64_t amount = *figures_.outside;
    std::string named;
    uint64_t foreign = 0;
    for (const auto& process : oom_.processes) {
      if (process.is_self || !process.plausible) continue;
      // Inside a container the own process appears under its host number: about as much as PyTorch
      // has reserved.
      const uint64_t own = figures_.reserved.value_or(0);
      const bool self_in_disguise = oom_.processes.size() == 1 && process.in_use.bytes >= own &&
                                    process.in_use.bytes - own < kOutsideBytes;
      if (self_in_disguise) continue;
      foreign += process.in_use.bytes;
      named += fmt::format("{}process {} ({})", named.empty() ? "" : ", ", process.pid.value_or(0),
                           process.in_use.text);
    }
    const bool other = foreign > amount / 2;
    // Several processes with little more than a context each: ranks of the same job that touched
    // this GPU on their way to their own.
    const auto small = [&](const sources::LogProcess& process) {
      return !process.is_self && process.plausible && process.in_use.bytes < kOutsideBytes;
    };
    const auto contexts = std::count_if(oom_.processes.begin(), oom_.processes.end(), small);
    Finding& finding =
        add(other ? Cause::kOtherProcess : Cause::kOutsideAllocator,
            other ? "Another process holds the card" : "Much of the card is not PyTorch's",
            fmt::format("Of {}, {} are neither free nor reserved by this process's PyTorch{}. {} "
                        "were asked for.",
                        text_of(oom_.capacity), size_text(amount),
                        named.empty() ? ": other processes, a display, contexts, NCCL or another "
                                        "framework have them (the message does not name them)"
                                      : ": " + named,
                        requested()),
            other ? 0.95 : 0.8, amount);
    finding.kind = FindingKind::kOutside;
    figure(finding,
           fmt::format("capacity {} - free {} - reserved {} = {} outside", text_of(oom_.capacity),
                       text_of(oom_.free), size_text(figures_.reserved.value_or(0)),
                       size_text(amount)),
           amount);
    if (other && contexts >= 2)
      finding.advice.push_back(advice(
          fmt::format("{} processes have little more than a context here: if they are ranks of the "
                      "same job, call torch.cuda.set_device(local_rank) first and load checkpoints "
                      "with map_location, so that each touches its own GPU only",
                      contexts),
          foreign));
    if (other)
      finding.advice.push_back(advice(fmt::format("Stop {} (a crashed run that is still there?), "
                                                  "or use another GPU: {} would come free",
                                                  named, size_text(foreign)),
                                      foreign));
    else
      finding.advice.push_back(
          advice(fmt::format("Find who has the {}: nvidia-smi lists processes; a context takes 0.3 "
                             "to 1 GiB, each NCCL communicator several hundred MiB",
                             size_text(amount)),
                 amount));
    if (request < amount && capacity > 0)
      finding.advice.push_back(
          advice("With an empty card the same request may fit: nothing in the model has to change "
                 "for it"));
  }

  void fragmentation(uint64_t request, uint64_t slack, uint64_t free, uint64_t reserved) {
    Finding& finding =
        add(Cause::kFragmentation, "Fragmentation is likely",
            fmt::format("{} of the {} that PyTorch has reserved are not allocated, and {} are "
                        "free: together more than the {} that were asked for. So the free memory "
                        "lies in pieces. (The message has sums only; a snapshot shows the pieces.)",
                        size_text(slack), size_text(reserved), size_text(free), requested()),
            0.7, slack);
    figure(finding,
           fmt::format("request {} <= unallocated {} + free {}", size_text(request),
                       size_text(slack), size_text(free)),
           slack);
    finding.advice.push_back(advice(fmt::format("Expandable segments (if they are not on yet) let "
                                                "pieces serve one request: up to {} become usable",
                                                size_text(slack)),
                                    slack, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
    finding.advice.push_back(advice(
        "Make large buffers once and early; empty_cache() between phases of different shapes"));
  }

  void full(uint64_t request, uint64_t capacity, uint64_t slack, uint64_t free) {
    const uint64_t allocated = oom_.allocated ? oom_.allocated->bytes : 0;
    const bool huge = static_cast<double>(request) >= kHugeShare * static_cast<double>(capacity) &&
                      request >= allocated / 4;
    Cause cause = Cause::kCapacity;
    std::string title = "The card is full", where;
    if (trace_.loading) {
      where = " It failed while a state was loaded: loaded onto the GPU it exists twice there.";
    } else if (trace_.saving) {
      where =
          " It failed while a checkpoint was saved: a full state dict brings all shards together "
          "on every rank that asks for it.";
    } else if (trace_.first_state) {
      cause = Cause::kOptimizerFirstStep;
      title = "The optimizer's first step makes its state, and there is no room for it";
      where =
          " It failed in the function in which the optimizer makes its state, in its first step (8 "
          "bytes a parameter for Adam in 32 bits): a smaller batch frees none of it.";
    } else if (trace_.optimizer && !trace_.backward) {
      cause = Cause::kModelState;
      title = "The optimizer's step does not fit";
      where =
          " It failed in the optimizer's step, which makes its state in the first step (8 bytes a "
          "parameter for Adam in 32 bits) and copies with foreach.";
    } else if (trace_.loss) {
      cause = Cause::kLogits;
      title = "The loss's logits do not fit";
      where =
          " It failed in the loss: its input has samples or tokens x classes elements, and the "
          "loss makes copies of it.";
    } else if (trace_.evaluation) {
      where =
          " It failed in evaluation: is it under torch.no_grad(), and are outputs collected on the "
          "GPU?";
      if (trace_.collects)
        where = " It failed where evaluation puts the outputs of all batches together on the GPU.";
    } else if (trace_.moving) {
      cause = Cause::kModelState;
      title = "The model does not fit";
      where =
          " It failed while the model was moved to the GPU: its parameters alone do not fit beside "
          "what is there.";
    } else if (trace_.backward) {
      cause = Cause::kActivations;
      title = "Activations and gradients fill the card";
      where = " It failed in the backward pass.";
    }
    std::string text = fmt::format(
        "{} of {} are allocated by tensors; {} more were asked for, and {} were free or cached.{}",
        text_of(oom_.allocated), text_of(oom_.capacity), requested(), size_text(slack + free),
        where);
    if (huge)
      text += fmt::format(
          " One tensor of {} is {:.0f} % of the card: it grows with the product of two lengths "
          "(attention without a memory-efficient kernel, logits, a pairwise matrix), not with the "
          "model.",
          requested(), 100.0 * static_cast<double>(request) / static_cast<double>(capacity));
    if (slack + free >= request &&
        static_cast<double>(slack) <
            kSlackShare * static_cast<double>(figures_.reserved.value_or(0)))
      text += fmt::format(
          " The {} of cached pieces would have held it in one piece, but that is {} of what is "
          "reserved: closing the holes would not carry far.",
          size_text(slack),
          fmt::format("{:.1f} %", 100.0 * static_cast<double>(slack) /
                                      static_cast<double>(
                                          std::max<uint64_t>(figures_.reserved.value_or(1), 1))));
    Finding& finding =
        add(huge && cause == Cause::kCapacity ? Cause::kActivations : cause,
            huge && cause == Cause::kCapacity ? "One huge tensor does not fit" : title, text, 0.7,
            allocated);
    figure(finding, fmt::format("missing at least {}", size_text(above(request, slack + free))),
           above(request, slack + free));
    if (trace_.loading)
      finding.advice.push_back(
          advice("Load to the host first (map_location=\"cpu\"), then copy into the model and "
                 "optimizer that exist, and drop the loaded dict",
                 oom_.requested ? std::optional<uint64_t>(request) : std::nullopt,
                 "torch.load(path, map_location=\"cpu\")"));
    if (trace_.saving)
      finding.advice.push_back(
          advice("Save sharded state dicts, or gather on rank 0 only and in host memory "
                 "(offload_to_cpu, rank0_only)"));
    if (trace_.collects)
      finding.advice.push_back(
          advice("Take the outputs to the host every few batches (in the Hugging Face Trainer "
                 "eval_accumulation_steps), and keep the argmax or the metric instead of all "
                 "logits: on the host they would need as much",
                 std::nullopt, "eval_accumulation_steps=1"));
    if (huge)
      finding.advice.push_back(
          advice(fmt::format("Split the computation of the {} tensor (chunked attention or loss, a "
                             "memory-efficient kernel): halved it needs {}",
                             requested(), size_text(request / 2)),
                 request / 2));
    finding.advice.push_back(
        advice("If it fails in the first steps: a smaller batch or shorter samples lower "
               "activations only. If the model with its gradients and optimizer state (16 B a "
               "parameter with Adam in 32 bits) is already near the card's size, only sharding, "
               "offloading or an 8-bit optimizer helps"));
    finding.advice.push_back(advice(
        "If it fails later: something grows (a leak) or one sample is larger; a recorded history "
        "shows which (torch.cuda.memory._record_memory_history, then tonnage explain)"));
  }

  void unknown() {
    Finding& finding =
        add(Cause::kUnknown, "Out of memory",
            oom_.requested
                ? fmt::format("{} were asked for; the message was cut off before its figures.",
                              requested())
                : "The message has no figures.",
            0.5, oom_.requested ? oom_.requested->bytes : 0);
    finding.advice.push_back(
        advice("The whole message has the card's size, what is free and what PyTorch holds; a "
               "recorded history has everything"));
  }

  const LogOom& oom_;
  LogFigures figures_;
  TraceFacts trace_;
  std::vector<Finding> findings_;
};

// What looks like a great saving is a part of the model that is not trained any more.
Finding untrained_checkpoint(const sources::Log& log) {
  Finding finding;
  finding.cause = Cause::kCheckpointInactive;
  finding.title = "A checkpointed part of the model is not trained";
  finding.text =
      "PyTorch warns that no input of torch.utils.checkpoint wants gradients: with "
      "use_reentrant=True nothing inside gets any. Memory that was measured so is no saving of "
      "checkpointing: no activations are kept because no backward pass comes.";
  finding.confidence = 0.95;
  finding.evidence.push_back(
      {fmt::format(
           "line {} of the log: None of the inputs have requires_grad=True. Gradients will be None",
           log.checkpoint_warning_line),
       std::nullopt,
       {},
       {},
       {}});
  finding.advice.push_back(
      {"Checkpoint without reentrance, or let the first input want gradients (x.requires_grad_(), "
       "model.enable_input_require_grads()); then measure again",
       std::nullopt, "use_reentrant=False"});
  return finding;
}

}  // namespace

LogFigures log_figures(const LogOom& oom) {
  LogFigures out;
  if (oom.reserved)
    out.reserved = oom.reserved->bytes;
  else if (oom.allocated && oom.unallocated)
    out.reserved = oom.allocated->bytes + oom.unallocated->bytes;
  if (out.reserved && oom.allocated)
    out.slack =
        oom.unallocated ? oom.unallocated->bytes : above(*out.reserved, oom.allocated->bytes);
  if (oom.format == OomFormat::kMps || oom.format == OomFormat::kXlaMemorySpace) return out;
  if (oom.capacity && oom.free && out.reserved)
    out.outside = above(above(oom.capacity->bytes, oom.free->bytes), *out.reserved);
  uint64_t others = 0;
  bool any = false;
  for (const auto& process : oom.processes) {
    if (!process.plausible) continue;
    if (process.is_self) {
      if (out.reserved) out.own_outside = above(process.in_use.bytes, *out.reserved);
      continue;
    }
    others += process.in_use.bytes;
    any = true;
  }
  if (any) out.others = others;
  out.oversubscribed = oom.capacity && oom.allocated && oom.allocated->bytes > oom.capacity->bytes;
  if (oom.allowed && oom.requested && oom.capacity) {
    // Allowed = capacity is no cap. Rounded figures: half of the last digit may be missing.
    const uint64_t tolerance =
        oom.allowed->plus_minus_bytes + (oom.allocated ? oom.allocated->plus_minus_bytes : 0);
    const bool below_card =
        static_cast<double>(oom.allowed->bytes) < 0.98 * static_cast<double>(oom.capacity->bytes);
    const uint64_t held = out.reserved ? *out.reserved : oom.allocated ? oom.allocated->bytes : 0;
    out.cap_binds = below_card && held + oom.requested->bytes + tolerance >= oom.allowed->bytes;
  }
  return out;
}

std::vector<Finding> diagnose(const LogOom& oom) { return LogDiagnosis(oom).run(); }

Explanation explain(const sources::Log& log, const ExplainOptions&) {
  Explanation out;
  out.source = log.source;
  out.kind = Explanation::Kind::kLog;
  out.notes = log.notes;
  out.log_lines = log.lines;
  for (const LogOom& oom : log.ooms) {
    Failure failure;
    failure.device = oom.device ? static_cast<int>(std::min<uint64_t>(*oom.device, INT32_MAX)) : 0;
    failure.rank = oom.rank;
    const LogFigures figures = log_figures(oom);
    if (oom.requested) failure.request_bytes = oom.requested->bytes;
    if (oom.capacity) failure.capacity_bytes = oom.capacity->bytes;
    if (oom.free) failure.free_bytes = oom.free->bytes;
    if (oom.allocated) failure.allocated_bytes = oom.allocated->bytes;
    failure.reserved_bytes = figures.reserved;
    if (oom.allowed) failure.limit_bytes = oom.allowed->bytes;
    failure.limit_is_cap = figures.cap_binds;
    const int index = static_cast<int>(out.failures.size());
    for (Finding& finding : diagnose(oom)) {
      finding.failure = index;
      out.findings.push_back(std::move(finding));
    }
    failure.message = oom;
    out.failures.push_back(std::move(failure));
  }
  if (log.checkpoint_warning_line > 0) out.findings.push_back(untrained_checkpoint(log));
  if (out.failures.empty()) {
    out.summary = fmt::format("No out-of-memory message was found in {} lines.", log.lines);
    if (!out.findings.empty()) out.summary += " " + out.findings.front().text;
    return out;
  }
  // Harmless retries do not make the headline if there is a real failure.
  const auto primary_of = [&](int failure) {
    return std::find_if(out.findings.begin(), out.findings.end(),
                        [&](const Finding& f) { return f.failure == failure && f.primary; });
  };
  int lead = 0;
  while (lead + 1 < static_cast<int>(out.failures.size()) &&
         primary_of(lead)->cause == Cause::kHarmless)
    ++lead;
  const auto primary = primary_of(lead);
  const Failure& failure = out.failures[static_cast<size_t>(lead)];
  out.summary = "Out of memory";
  if (failure.message->device) out.summary += fmt::format(" on GPU {}", *failure.message->device);
  if (failure.rank) out.summary += fmt::format(" (rank {})", *failure.rank);
  if (primary->site) out.summary += ", at " + site_text(*primary->site);
  out.summary += ": " + primary->text;
  if (!primary->advice.empty()) out.summary += " " + primary->advice.front().text + ".";
  for (const Finding& finding : out.findings) {
    if (finding.failure == lead && !finding.primary) out.summary += " Besides: " + finding.text;
  }
  if (out.failures.size() > 1)
    out.summary += fmt::format(" ({} out-of-memory messages in all.)", out.failures.size());
  out.limits.push_back(
      "A message has sums only: which tensors fill the memory, whether something grows, and how "
      "the free pieces lie is in a snapshot (torch.cuda.memory._record_memory_history).");
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [lead](const Finding& a, const Finding& b) {
                     return (a.failure == lead) > (b.failure == lead);
                   });
  return out;
}

}  // namespace tonnage::analysis
