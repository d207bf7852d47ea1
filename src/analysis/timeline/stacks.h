// What a Python or C++ stack shows: the user's line, and what the program was doing.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/place.h"
#include "record/record.h"

namespace tonnage::analysis {

enum class FileOwner : uint8_t { kUser, kPackage, kTorch, kPython, kNative };

// Library functions that want scratch memory, as far as a name tells.
enum class OpFamily : uint8_t { kNone, kMatrix, kConvolution, kAttention, kRnn };

struct StackFacts {
  bool empty = true;
  bool only_user = false;        // every frame is the user's own code
  bool in_optimizer = false;     // inside step() of a class of torch/optim
  bool makes_state = false;      // in_optimizer, and in the function that creates its state
  bool in_backward = false;      // called from autograd (checkpointing, custom functions)
  bool starts_backward = false;  // autograd's own first gradient
  bool in_module = false;        // inside a module's call
  bool in_forward = false;       // inside a function of the user's own that is called forward
  bool in_functional = false;    // torch/nn/functional.py, torch/functional.py
  bool converts_module = false;  // module.to(), .cuda(), .half()
  bool builds_module = false;    // __init__ or reset_parameters of a module of torch/nn
  bool makes_buckets = false;    // DistributedDataParallel's own copies of the gradients
  OpFamily family = OpFamily::kNone;
  int line_frame = -1;  // Site::line, index into the stack; -1: none
  int user_frame = -1;  // Site::user_line
};

class Stacks {
 public:
  explicit Stacks(const record::Record& record);
  const StackFacts& operator[](uint32_t stack) const {
    return stack < facts_.size() ? facts_[stack] : facts_[0];
  }
  Place line(uint32_t stack) const;
  Place user_line(uint32_t stack) const;
  Site site(const abi::MemoryEvent& event) const;
  Site site(uint32_t stack, uint32_t op, uint32_t module) const;

 private:
  Place place(uint32_t stack, int frame) const;
  const record::Record& record_;
  std::vector<StackFacts> facts_;
};

FileOwner owner_of(const std::string& file);
// "_call_impl" of "Module._call_impl", as records of newer Pythons name it; "wrapper" of
// "f.<locals>.wrapper".
std::string_view bare_name(std::string_view function);
OpFamily family_of(const std::string& op);

}  // namespace tonnage::analysis
