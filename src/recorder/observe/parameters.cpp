#include "recorder/observe/parameters.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>

#include "recorder/observe/gradients.h"
#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/phases.h"
#include "recorder/observe/steps.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

constexpr uint32_t kNameless = 0;           // a parameter whose name nobody has told
constexpr uint32_t kNoModule = UINT32_MAX;  // a parameter of no module

class Parameters {
 public:
  struct Found {
    bool known = false;  // the address is a parameter's
    uint32_t module = kNameless;
  };

  // A filter, so that most questions need no lock. It may say yes for another address.
  bool maybe(uint64_t address) const {
    return size_.load(std::memory_order_relaxed) != 0 &&
           filter_[slot(address)].load(std::memory_order_relaxed) != 0;
  }
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

  Found find(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = module_at_.find(address);
    return found == module_at_.end() ? Found{} : Found{true, found->second};
  }
  void add_nameless(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex_);
    filter_[slot(address)].store(1, std::memory_order_relaxed);
    module_at_.emplace(address, kNameless);
    size_ = module_at_.size();
  }
  void set(uint64_t address, std::string_view module) {
    const uint32_t id = module.empty() ? kNoModule : intern(module);
    std::lock_guard<std::mutex> lock(mutex_);
    filter_[slot(address)].store(1, std::memory_order_relaxed);
    module_at_[address] = id;
    if (!module.empty()) names_.emplace(id, module);
    size_ = module_at_.size();
    changes_.fetch_add(1, std::memory_order_release);
  }
  void erase(uint64_t address) {
    if (!maybe(address)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (module_at_.erase(address)) changes_.fetch_add(1, std::memory_order_release);
    size_ = module_at_.size();
  }

  // The module `levels` further out ("a.b.c", 1: "a.b"), 0 if there is none.
  uint32_t outer_module(uint32_t module, size_t levels) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [entry, made] = outer_.try_emplace(uint64_t{module} << 32 | levels, 0);
    if (!made) return entry->second;
    auto name = names_.find(module);
    if (name == names_.end()) return 0;
    std::string_view rest = name->second;
    for (; levels > 0 && !rest.empty(); levels--) {
      const size_t dot = rest.rfind('.');
      rest = dot == std::string_view::npos ? std::string_view() : rest.substr(0, dot);
    }
    entry->second = rest.empty() ? 0 : intern(rest);
    return entry->second;
  }

  static size_t slot(uint64_t address) { return (address >> 9) * 0x9e3779b97f4a7c15ull >> 52; }

 private:
  std::mutex mutex_;  // also taken under the allocator's lock; nothing is called while it is held
  std::unordered_map<uint64_t, uint32_t> module_at_;  // kNameless, kNoModule, or a module
  std::unordered_map<uint32_t, std::string> names_;   // of modules
  std::unordered_map<uint64_t, uint32_t> outer_;      // module and levels -> module
  std::atomic<size_t> size_{0};
  std::atomic<uint64_t> changes_{1};  // of module_at_: threads remember it while this stays
  std::atomic<uint8_t> filter_[1 << 12] = {};  // by address; only ever set
};

Parameters& parameters() {
  static Parameters* instance = new Parameters();
  return *instance;
}

// The Python object of a tensor, borrowed; null where there is none. The slot's interface differs
// between PyTorch versions.
template <class Slot>
const void* object_in(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); })
    return slot.load_pyobj();
  else
    return slot._unchecked_untagged_pyobj();
}

// Asks Python for names; 0 if the parameter still has none. `trained`: it requires a gradient, so a
// tensor of no module is one of the program's own.
uint32_t ask_for_module(const at::Tensor& parameter, uint64_t address, bool trained) {
  ask_for_names();
  auto found = parameters().find(address);
  if (found.module != kNameless || !trained) return found.module;
  const void* object =
      python_names() ? object_in(*parameter.unsafeGetTensorImpl()->pyobj_slot()) : nullptr;
  if (object)
    ask_about_leaf(object);
  else
    label(address, abi::Category::kParameter, 0);
  return parameters().find(address).module;
}

// The module that owns a parameter which an operator uses; 0 if unknown.
uint32_t module_of(ThreadState& thread, const at::Tensor& parameter, bool trained) {
  if (!device::plain(parameter) || parameter.numel() == 0) return 0;
  const uint64_t address = address_of(parameter);
  Parameters& p = parameters();
  const uint64_t changes = p.changes();
  auto& recent = thread.caches.parameters[Parameters::slot(address) % LookupCaches::kParameters];
  if (recent.address == address && recent.changes == changes) return recent.module;
  const auto found = p.find(address);
  uint32_t module = found.module;
  if (found.known && module != kNameless) {
    recent = {address, changes, module == kNoModule ? 0 : module};
    return recent.module;
  }
  if (!found.known)
    p.add_nameless(address);
  else if (names_asked_in_this_step())
    return 0;
  module = ask_for_module(parameter, address, trained);
  return module == kNoModule ? 0 : module;
}

// A tensor that requires a gradient was written while gradients are disabled: an update by hand. If
// it was used before, it is a parameter.
void note_written_by_hand(const at::Tensor& parameter) {
  if (!device::plain(parameter) || parameter.numel() == 0) return;
  const uint64_t address = address_of(parameter);
  const auto found = parameters().find(address);
  if (!found.known || found.module != kNameless) return;
  parameters().set(address, {});
  label(address, abi::Category::kParameter, 0);
}

// The parameter that a tensor is, or is a view of: a leaf that requires a gradient. Only leaves
// have the flag themselves; asking the tensor takes a lock where it is a view.
const at::Tensor* parameter_of(const at::Tensor& t) {
  if (!t.defined() || !device::has(t)) return nullptr;
  const at::Tensor* whole = &t;
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(t);
  if (meta && meta->is_view_) {
    const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
    if (!view->has_bw_view()) return nullptr;
    whole = &view->get_backward_view().base_;
    meta = torch::autograd::impl::get_autograd_meta(*whole);
  }
  return meta && meta->requires_grad_ && !meta->grad_fn_ ? whole : nullptr;
}

// A look at the tensors of one call.
class Look {
 public:
  Look(ThreadState& thread, const OpInfo& info)
      : thread_(thread), info_(info), gradients_enabled_(c10::GradMode::is_enabled()) {}

  void at(const at::Tensor& t, size_t argument) {
    const bool written = info_.writes[argument] != 0;
    const at::Tensor* parameter = parameter_of(t);
    if (!parameter) return at_other(t, argument, written);
    if (written) {
      if (gradients_enabled_) return;
      note_written_by_hand(*parameter);
      if (backward_since_step()) note_parameter_written(false);
    } else if (gradients_enabled_) {
      finish_pending_step(/*forward_began=*/true);
      note_update_over();
      use(*parameter, true);
    } else if (static_cast<int>(argument) == info_.weight_argument || info_.multiplies) {
      use(*parameter, true);
    } else if (between_passes() && info_.makes_alike) {
      note_update();  // an optimizer's state, made like a parameter
    }
  }
  bool found() const { return found_; }

 private:
  // Work after a backward pass and before the next forward pass.
  bool between_passes() const { return backward_since_step() && !update_runs(); }

  // Not a leaf that requires a gradient. It can be a frozen weight, a gradient, or a parameter's
  // .data.
  void at_other(const at::Tensor& t, size_t argument, bool written) {
    if (!t.defined() || !device::has(t)) return;
    if (static_cast<int>(argument) == info_.weight_argument && t.is_leaf()) return use(t, false);
    if (!backward_since_step() || !device::plain(t) || t.numel() == 0) return;
    const uint64_t address = address_of(t);
    if (written && parameters().maybe(address) && parameters().find(address).known)
      note_parameter_written(gradients_enabled_);
    else if (!written && between_passes() && is_gradient_address(address))
      note_update();
  }

  void use(const at::Tensor& parameter, bool trained) {
    note_model_ran();
    const uint32_t module = module_of(thread_, parameter, trained);
    if (!module) return;
    LineState& lines = thread_.lines;
    lines.module = lines.used_module = module;
    lines.used_depth = lines.depth;
    found_ = true;
  }

  ThreadState& thread_;
  const OpInfo& info_;
  const bool gradients_enabled_;
  bool found_ = false;
};

// An operator without a parameter belongs to the module that was used last, or to one that contains
// it. The depth of the stack decides: a module's forward and its call take three frames.
void follow_module(LineState& lines) {
  if (lines.depth == 0 || lines.used_module == 0) return;
  const size_t levels =
      lines.used_depth > lines.depth ? (lines.used_depth - lines.depth + 1) / 3 : 0;
  lines.module = levels ? parameters().outer_module(lines.used_module, levels) : lines.used_module;
}

}  // namespace

void look_at_parameters(ThreadState& thread, const OpInfo& info,
                        const at::RecordFunction& function) {
  if (in_backward(thread) || in_optimizer(thread)) return;
  constexpr size_t kLongestList = 64;
  const auto inputs = inputs_of(function, info);
  Look look(thread, info);
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++) {
    if (info.kinds[i] == ArgumentKind::kTensor) {
      if (inputs[i].isTensor()) look.at(inputs[i].toTensor(), i);
    } else if (info.kinds[i] == ArgumentKind::kTensors && inputs[i].isList()) {
      const auto list = inputs[i].toListRef();
      const size_t most = list.size() > kLongestList ? 1 : list.size();
      for (size_t n = 0; n < most; n++)
        if (list[n].isTensor()) look.at(list[n].toTensor(), i);
    }
  }
  if (!look.found()) follow_module(thread.lines);
}

void name_parameter(uint64_t address, std::string_view name) {
  const size_t dot = name.rfind('.');
  parameters().set(address,
                   dot == std::string_view::npos ? std::string_view() : name.substr(0, dot));
}

void forget_parameter(uint64_t address) { parameters().erase(address); }

}  // namespace tonnage::recorder
