#include "tonnage/torch/replaceable.h"

#include <torch/torch.h>

#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "layer_places.h"

namespace tonnage {

using ::torch::Tensor;
namespace nn = ::torch::nn;

namespace {

constexpr const char* kChild = "layer";

void adopt(nn::Module& place, bool has_one, const std::shared_ptr<nn::Module>& layer) {
  TORCH_CHECK(layer, "replace: there is no layer in the holder");
  TORCH_CHECK(layer.get() != &place, "replace: a layer cannot be its own substitute");
  layer->train(place.is_training());
  if (has_one)
    place.replace_module(kChild, layer);
  else
    place.register_module(kChild, layer);
}

// The plain class clones into an object of itself; one of ours takes its content over.
template <class Ours, class Plain>
std::shared_ptr<nn::Module> clone_of(const Ours& layer,
                                     const std::shared_ptr<nn::Module>& substitute,
                                     const std::optional<c10::Device>& device) {
  TORCH_CHECK(!substitute, "clone: a layer that was replaced (now ",
              substitute ? substitute->name() : "",
              ") cannot be cloned. Clone the model before its layers are replaced");
  return std::make_shared<Ours>(*std::static_pointer_cast<Plain>(layer.Plain::clone(device)));
}

}  // namespace

template <class Plain>
void ReplaceableImpl<Plain>::put(std::shared_ptr<nn::Module> layer,
                                 std::function<Tensor(const Tensor&)> call) {
  adopt(*this, substitute_ != nullptr, layer);
  substitute_ = std::move(layer);
  call_ = std::move(call);
  this->parameters_.clear();
  this->weight = this->bias = Tensor();
}

template <class Plain>
void ReplaceableImpl<Plain>::replace(nn::AnyModule layer) {
  auto any = std::make_shared<nn::AnyModule>(std::move(layer));
  put(any->ptr(), [any](const Tensor& input) { return any->forward<Tensor>(input); });
}

template <class Plain>
std::shared_ptr<nn::Module> ReplaceableImpl<Plain>::clone(
    const std::optional<c10::Device>& device) const {
  return clone_of<ReplaceableImpl, Plain>(*this, substitute_, device);
}

template <class Plain>
void ReplaceableImpl<Plain>::pretty_print(std::ostream& stream) const {
  if (substitute_)
    stream << "tonnage::Replaceable";
  else
    Plain::pretty_print(stream);
}

template class ReplaceableImpl<nn::LinearImpl>;
template class ReplaceableImpl<nn::Conv2dImpl>;

std::tuple<Tensor, LSTMImpl::State> LSTMImpl::forward(const Tensor& input,
                                                      std::optional<State> state) {
  if (!substitute_) return nn::LSTMImpl::forward(input, std::move(state));
  return any_.forward<std::tuple<Tensor, State>>(input, std::move(state));
}

std::tuple<nn::utils::rnn::PackedSequence, LSTMImpl::State> LSTMImpl::forward_with_packed_input(
    const nn::utils::rnn::PackedSequence& packed_input, std::optional<State> state) {
  TORCH_CHECK(!substitute_, "LSTM: it was replaced by ", substitute_ ? substitute_->name() : "",
              ", which takes no packed sequences. Pad them");
  return nn::LSTMImpl::forward_with_packed_input(packed_input, std::move(state));
}

void LSTMImpl::replace(nn::AnyModule layer) {
  adopt(*this, substitute_ != nullptr, layer.ptr());
  substitute_ = layer.ptr();
  any_ = std::move(layer);
  parameters_.clear();
  flat_weights_.clear();  // its own references to the parameters
}

std::shared_ptr<nn::Module> LSTMImpl::clone(const std::optional<c10::Device>& device) const {
  return clone_of<LSTMImpl, nn::LSTMImpl>(*this, substitute_, device);
}

void LSTMImpl::pretty_print(std::ostream& stream) const {
  if (substitute_)
    stream << "tonnage::Replaceable";
  else
    nn::LSTMImpl::pretty_print(stream);
}

namespace detail {
namespace {

// A place in the tree whose layer was chosen.
struct Place {
  std::string name;
  std::shared_ptr<nn::Module> layer;  // what `make` replaces
  Choice choice;
  Replaceable* replaceable = nullptr;        // either this
  nn::SequentialImpl* sequential = nullptr;  // or the entry of this
  size_t index = 0;
  std::string problem;  // or it cannot be replaced
};

class Walk {
 public:
  Walk(const Choose& choose, const LayerFilter& filter) : choose_(choose), filter_(filter) {}

  void visit(const std::string& name, const std::shared_ptr<nn::Module>& module, nn::Module* parent,
             size_t index) {
    auto* replaceable = dynamic_cast<Replaceable*>(module.get());
    const bool was_replaced = replaceable && replaceable->substitute();
    const std::shared_ptr<nn::Module> layer = was_replaced ? replaceable->substitute() : module;
    if (!filter_ || filter_(name, *layer)) {
      if (auto choice = choose_(name, layer)) {
        Place place;
        place.name = name;
        place.layer = layer;
        place.choice = std::move(*choice);
        auto* sequential = dynamic_cast<nn::SequentialImpl*>(parent);
        if (!place.choice.make)
          place.problem = place.choice.why;
        else if (replaceable)
          place.replaceable = replaceable;
        else if (sequential)
          place.sequential = sequential, place.index = index;
        else
          place.problem =
              parent ? "it is a typed member of " + parent->name() : "it is the model itself";
        // The same object again is replaced already, except in another Sequential, which has its
        // own reference to it.
        if (!replaceable || done_.insert(module.get()).second) places.push_back(std::move(place));
        return;
      }
    }
    const std::string prefix = name.empty() ? name : name + ".";
    children(was_replaced ? prefix + kChild + "." : prefix, *layer);
  }

  void children(const std::string& prefix, nn::Module& module) {
    if (!entered_.insert(&module).second) return;
    size_t index = 0;
    for (const auto& child : module.named_children())
      visit(prefix + child.key(), child.value(), &module, index++);
  }

  std::vector<Place> places;

 private:
  const Choose& choose_;
  const LayerFilter& filter_;
  std::unordered_set<const nn::Module*> done_, entered_;
};

}  // namespace

ReplacedLayers replace_chosen(nn::Module& model, const Choose& choose,
                              const ReplaceOptions& options, const char* who) {
  Walk walk(choose, options.filter);
  if (const auto self = model.weak_from_this().lock()) {
    walk.visit("", self, nullptr, 0);
  } else {
    TORCH_CHECK(!dynamic_cast<Replaceable*>(&model), who,
                ": the model is a single layer; it must be in a holder or a std::shared_ptr");
    walk.children("", model);
  }

  ReplacedLayers result;
  std::ostringstream problems;
  for (const Place& place : walk.places) {
    if (place.problem.empty()) continue;
    result.fixed.push_back(place.name);
    problems << "\n  " << place.name << " (" << place.layer->name() << "): " << place.problem;
  }
  TORCH_CHECK(options.leave_fixed || result.fixed.empty(), who, ": ", result.fixed.size(),
              result.fixed.size() == 1 ? " layer" : " layers",
              " cannot be replaced where they are:", problems.str(),
              "\nDeclare them as tonnage::Linear, tonnage::Conv2d or tonnage::LSTM "
              "(tonnage/torch/replaceable.h), keep them in a torch::nn::Sequential, "
              "or leave them out with ReplaceOptions::filter. Nothing was changed");

  std::unordered_map<const nn::Module*, nn::AnyModule> made;
  for (const Place& place : walk.places)
    if (place.problem.empty() && !made.count(place.layer.get())) {
      made.emplace(place.layer.get(), place.choice.make());
      made.at(place.layer.get()).ptr()->train(place.layer->is_training());
    }
  for (const Place& place : walk.places) {
    if (!place.problem.empty()) continue;
    const nn::AnyModule& layer = made.at(place.layer.get());
    if (place.replaceable) {
      place.replaceable->replace(layer);
    } else {
      *(place.sequential->begin() + static_cast<std::ptrdiff_t>(place.index)) = layer;
      place.sequential->replace_module(place.sequential->named_children().keys()[place.index],
                                       layer.ptr());
    }
    result.replaced.push_back(place.name);
  }
  return result;
}

std::vector<std::string> chosen_below(const nn::Module& model, const Choose& choose) {
  const LayerFilter all;
  Walk walk(choose, all);
  walk.children("", const_cast<nn::Module&>(model));  // it only looks
  std::vector<std::string> names;
  for (const Place& place : walk.places) names.push_back(place.name);
  return names;
}

}  // namespace detail

ReplacedLayers replace_layers(nn::Module& model, const MakeSubstitute& make,
                              const ReplaceOptions& options) {
  TORCH_CHECK(make, "replace_layers: there is no function that makes the layers");
  // The function is asked once for each layer: it may make the substitute right away.
  std::unordered_map<const nn::Module*, std::optional<nn::AnyModule>> asked;
  const detail::Choose choose =
      [&](const std::string& name,
          const std::shared_ptr<nn::Module>& layer) -> std::optional<detail::Choice> {
    auto found = asked.find(layer.get());
    if (found == asked.end()) found = asked.emplace(layer.get(), make(name, layer)).first;
    if (!found->second) return std::nullopt;
    return detail::Choice{[substitute = *found->second] { return substitute; }, ""};
  };
  return detail::replace_chosen(model, choose, options, "replace_layers");
}

}  // namespace tonnage
