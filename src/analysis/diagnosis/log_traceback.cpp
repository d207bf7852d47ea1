#include "analysis/diagnosis/log_traceback.h"

#include <algorithm>

#include "analysis/timeline/stacks.h"

namespace tonnage::analysis {
namespace {

using sources::LogFrame;
using sources::LogFramework;
using sources::LogOom;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool contains_any(std::string_view text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (contains(text, part)) return true;
  }
  return false;
}

void read_frame(const LogFrame& frame, TraceFacts& facts) {
  std::string file = frame.file;  // Windows writes "\\"
  std::replace(file.begin(), file.end(), '\\', '/');
  const std::string& function = frame.function;
  if (contains(file, "torch/autograd/")) facts.backward = true;
  if (contains(file, "torch/optim/")) {
    facts.optimizer = true;
    if (function == "_init_group" || contains(function, "init_state")) facts.first_state = true;
  }
  facts.loss |= contains_any(function, {"cross_entropy", "log_softmax", "nll_loss"});
  facts.evaluation |= contains_any(function, {"evaluat", "validat", "predict", "test_step"});
  facts.collects |= contains_any(
      function, {"nested_concat", "pad_and_concatenate", "nested_numpify", "dim_zero_cat"});
  facts.saving |=
      contains_any(function, {"save_checkpoint", "_full_state_dict", "_optim_state_dict"}) ||
      contains(frame.code, "torch.save(");
  facts.loading |= contains(function, "load_state_dict") || contains(frame.code, "torch.load(");
  facts.moving |= function == "convert" || (function == "_apply" && contains(file, "torch/nn/"));
  facts.pinning |= contains(function, "pin_memory") || contains(frame.code, ".pin_memory(");
  facts.starting |= contains(function, "_lazy_init");
  if (contains(file, "/vllm/")) facts.server = LogFramework::kVllm;
  if (contains(file, "/sglang/")) facts.server = LogFramework::kSglang;
  if (contains(file, "/text_generation_server/")) facts.server = LogFramework::kTgi;
  if (contains_any(file, {"/comfy/", "ComfyUI"})) facts.server = LogFramework::kComfyUi;
  if (contains(file, "stable-diffusion-webui")) facts.server = LogFramework::kWebUi;
  if (contains(file, "/diffusers/pipelines/")) facts.server = LogFramework::kDiffusers;
  if (contains(file, "/transformers/generation/")) facts.server = LogFramework::kTransformers;
  facts.torch |= contains_any(file, {"/torch/"});
}

}  // namespace

TraceFacts read_traceback(const LogOom& oom) {
  TraceFacts facts;
  const LogFrame *user = nullptr, *innermost = nullptr;
  for (const LogFrame& frame : oom.frames) {
    const FileOwner owner = owner_of(frame.file);
    if (owner == FileOwner::kUser) user = &frame;
    if (owner == FileOwner::kUser || owner == FileOwner::kPackage) innermost = &frame;
    read_frame(frame, facts);
  }
  // The code of the last frame only: a line further out may do several things, and the frames below
  // it tell which.
  if (!oom.frames.empty()) {
    const std::string& code = oom.frames.back().code;
    const bool deeper = facts.backward || facts.optimizer || facts.loss;
    if (!deeper && contains(code, ".backward(")) facts.backward = true;
    if (!deeper && !contains(code, ".backward(") &&
        contains_any(code, {"optimizer.step", "optim.step"}))
      facts.optimizer = true;
    if (contains_any(code, {".cuda(", ".to("})) facts.moving = true;
  }
  if (user) {
    Site site;
    site.user_line = {user->file, user->line, user->function};
    site.line =
        innermost ? Place{innermost->file, innermost->line, innermost->function} : site.user_line;
    if (innermost != user && owner_of(innermost->file) == FileOwner::kUser)
      site.line = site.user_line;
    facts.site = std::move(site);
  }
  if (!facts.server) facts.server = oom.application;
  if (!facts.server && contains(oom.text, "Capture cuda graph failed"))
    facts.server = LogFramework::kSglang;
  return facts;
}

}  // namespace tonnage::analysis
