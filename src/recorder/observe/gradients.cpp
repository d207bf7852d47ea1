#include "recorder/observe/gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <atomic>

#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

// One address for each slot, without a lock: the later of two addresses replaces the earlier.
constexpr size_t kSlotBits = 13;
std::atomic<uint64_t> addresses[size_t{1} << kSlotBits] = {};

std::atomic<uint64_t>& slot_of(uint64_t address) {
  return addresses[(address >> 9) * 0x9e3779b97f4a7c15ull >> (64 - kSlotBits)];
}

void label_gradient(const at::Tensor& gradient) {
  if (!gradient.defined() || !device::plain(gradient) || gradient.numel() == 0) return;
  const uint64_t address = address_of(gradient);
  slot_of(address).store(address, std::memory_order_relaxed);
  label(address, abi::Category::kGradient, 0);
}

}  // namespace

void watch_accumulation(Frame& frame, torch::autograd::Node* node) {
  // The node's name, by which the caller knows it, is its type's.
  frame.gradient.node = static_cast<torch::autograd::AccumulateGrad*>(node);
  frame.gradient.expected = node != nullptr;
  // Hooks after it may use the gradient up before the node ends.
  if (node && (!node->post_hooks().empty() || node->tensor_post_acc_grad_hooks())) observe_detach();
}

void look_for_gradient(Frame& accumulation, const OpInfo& info,
                       const at::RecordFunction& function) {
  if (!info.keeps_gradient) return;
  accumulation.gradient.expected = false;
  // Without new memory there is nothing more to look at in the end.
  if (!info.makes_gradient) accumulation.gradient.node = nullptr;
  const auto inputs = inputs_of(function, info);
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    for_each_tensor(info.kinds[i], inputs[i], [](const at::Tensor& t, int) { label_gradient(t); });
}

void label_accumulated(const Frame& accumulation) {
  if (accumulation.gradient.node) label_gradient(accumulation.gradient.node->variable.grad());
}

bool is_gradient_address(uint64_t address) {
  return address != 0 && slot_of(address).load(std::memory_order_relaxed) == address;
}

void forget_gradient_address(uint64_t address) {
  auto& slot = slot_of(address);
  if (slot.load(std::memory_order_relaxed) == address) slot.store(0, std::memory_order_relaxed);
}

}  // namespace tonnage::recorder
