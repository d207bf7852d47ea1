#include "recorder/values/collective_plan.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>
#include <unordered_map>

#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {

Collective collective_of(std::string_view name) {
#ifdef TONNAGE_HAS_C10D
  static const auto& table = *new std::unordered_map<std::string_view, Collective>{
      {"c10d::allreduce_", Collective::kAllReduce},
      {"c10d::allreduce_coalesced_", Collective::kAllReduce},
      {"c10d::broadcast_", Collective::kBroadcast},
      {"c10d::reduce_", Collective::kReduce},
      {"c10d::allgather_", Collective::kAllGather},
      {"c10d::_allgather_base_", Collective::kAllGatherInto},
      {"c10d::allgather_into_tensor_coalesced_", Collective::kAllGatherInto},
      {"c10d::gather_", Collective::kGather},
      {"c10d::scatter_", Collective::kScatter},
      {"c10d::reduce_scatter_", Collective::kReduceScatter},
      {"c10d::_reduce_scatter_base_", Collective::kReduceScatterFrom},
      {"c10d::reduce_scatter_tensor_coalesced_", Collective::kReduceScatterFrom},
      {"c10d::alltoall_", Collective::kAllToAll},
      {"c10d::alltoall_base_", Collective::kAllToAllInto},
      {"c10d::send", Collective::kSend},
      {"c10d::recv_", Collective::kReceive},
      {"c10d::recv_any_source_", Collective::kReceiveFromAny},
  };
  auto found = table.find(name);
  if (found != table.end()) return found->second;
#endif
  return Collective::kNone;
}

#ifdef TONNAGE_HAS_C10D

namespace {

using Values = c10::ArrayRef<const c10::IValue>;

template <class T>
c10::intrusive_ptr<T> class_at(const c10::IValue& value) {
  if (!value.isObject()) return {};
  return c10::static_intrusive_pointer_cast<T>(value.toObjectRef().getSlot(0).toCapsule());
}

// The tensors of an argument, lists of lists one after another; false if one is not dense memory of
// a card.
bool add_extents(const c10::IValue& value, std::vector<Extent>* out) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined() || !device::has(t) || !device::plain(t)) return false;
    if (t.numel() != 0 && !t.is_non_overlapping_and_dense()) return false;
    out->push_back({t.numel() ? address_of(t) : 0, t.numel(), t.scalar_type()});
    return true;
  }
  if (!value.isList()) return false;
  for (const c10::IValue& element : value.toListRef())
    if (!add_extents(element, out)) return false;
  return true;
}

int64_t rows(const c10::IValue& value) {
  const at::Tensor& t = value.toTensor();
  return t.dim() == 0 ? 1 : t.size(0);
}

// `splits` in rows, or equal parts where it is empty.
std::vector<Extent> split(const Extent& whole, const std::vector<int64_t>& splits, int64_t rows,
                          int ranks) {
  std::vector<Extent> parts;
  const int64_t per_row = rows > 0 ? whole.elements / rows : 0;
  int64_t at = 0;
  for (int r = 0; r < ranks; r++) {
    const int64_t count =
        splits.empty() ? whole.elements / ranks : splits.at(static_cast<size_t>(r)) * per_row;
    parts.push_back(whole.part(at, count));
    at += count;
  }
  return parts;
}

bool has_one_list(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kBroadcast ||
         kind == Collective::kReduce || kind == Collective::kSend || kind == Collective::kReceive ||
         kind == Collective::kReceiveFromAny;
}

class Planner {
 public:
  Planner(Collective kind, const Route& route)
      : kind_(kind),
        route_(route),
        ranks_(route.group->getSize()),
        n_(static_cast<size_t>(ranks_)),
        me_(route.group->getRank()) {}

  Plan run(Values inputs) {
    plan_.sends.resize(n_);
    const auto tensors = tensor_arguments(inputs);
    if (!tensors[0] || !add_extents(*tensors[0], &first_)) return plan_;
    if (!has_one_list(kind_) && (!tensors[1] || !add_extents(*tensors[1], &second_))) return plan_;
    if (!plan_kind(tensors)) return plan_;
    for (const Receipt& receipt : plan_.receipts) plan_.outputs.push_back(receipt.to);
    if (route_.reduction)
      plan_.reduction = static_cast<c10d::ReduceOp::RedOpType>(*route_.reduction);
    plan_.valid = true;
    return plan_;
  }

 private:
  using Tensors = std::array<const c10::IValue*, 2>;
  // The first two arguments, unless one is the group.
  Tensors tensor_arguments(Values inputs) const {
    Tensors tensors = {};
    for (size_t i = 0; i < 2 && i < inputs.size(); i++)
      if (!inputs[i].isObject()) tensors[i] = &inputs[i];
    return tensors;
  }

  bool is_root() const { return route_.peer == me_; }
  std::vector<Source> from_all(size_t index) const {
    std::vector<Source> all;
    for (int r = 0; r < ranks_; r++) all.push_back({r, index});
    return all;
  }
  // Part i is the (i / n)-th of rank i % n.
  Source by_turns(size_t i) const { return {static_cast<int>(i % n_), i / n_}; }

  void send_to_each(const std::vector<Extent>& what) {
    for (auto& to : plan_.sends) to = what;
  }
  void send_to(int rank, const std::vector<Extent>& what) {
    if (rank >= 0 && rank < ranks_) plan_.sends[static_cast<size_t>(rank)] = what;
  }
  void deal_out(const std::vector<Extent>& what) {
    for (size_t i = 0; i < what.size(); i++) plan_.sends[i % n_].push_back(what[i]);
  }
  void receive_from(int rank) {
    for (size_t i = 0; i < first_.size(); i++) plan_.receipts.push_back({first_[i], {{rank, i}}});
  }
  void receive_reduced() {
    for (size_t i = 0; i < first_.size(); i++) plan_.receipts.push_back({first_[i], from_all(i)});
  }
  void receive_by_turns() {
    for (size_t i = 0; i < first_.size(); i++) plan_.receipts.push_back({first_[i], {by_turns(i)}});
  }

  bool plan_kind(const Tensors& tensors) {
    switch (kind_) {
      case Collective::kAllReduce: send_to_each(first_), receive_reduced(); break;
      case Collective::kReduce:
        send_to(route_.peer, first_);
        if (is_root()) receive_reduced();
        break;
      case Collective::kBroadcast: broadcast(); break;
      case Collective::kAllGather: send_to_each(second_), receive_by_turns(); break;
      case Collective::kGather: send_to(route_.peer, second_), receive_by_turns(); break;
      case Collective::kAllGatherInto: gather_into_one(); break;
      case Collective::kScatter:
        if (is_root()) deal_out(second_);
        receive_from(route_.peer);
        break;
      case Collective::kReduceScatter: deal_out(second_), receive_reduced(); break;
      case Collective::kReduceScatterFrom: scatter_one(), receive_reduced(); break;
      case Collective::kAllToAll: deal_out(second_), receive_by_turns(); break;
      case Collective::kAllToAllInto: return exchange_rows(rows(*tensors[0]), rows(*tensors[1]));
      case Collective::kSend: send_to(route_.peer, first_); break;
      case Collective::kReceive: receive_from(route_.peer); break;
      case Collective::kReceiveFromAny: plan_.outputs = first_; break;
      case Collective::kNone: return false;
    }
    return true;
  }

  void broadcast() {
    if (!is_root()) return receive_from(route_.peer);
    for (int r = 0; r < ranks_; r++)
      if (r != me_) send_to(r, first_);
  }
  void gather_into_one() {
    send_to_each(second_);
    for (size_t i = 0; i < first_.size(); i++) {
      const auto parts = split(first_[i], {}, 0, ranks_);
      for (size_t r = 0; r < n_; r++)
        plan_.receipts.push_back({parts[r], {{static_cast<int>(r), i}}});
    }
  }
  void scatter_one() {
    for (const Extent& in : second_) {
      const auto parts = split(in, {}, 0, ranks_);
      for (size_t r = 0; r < n_; r++) plan_.sends[r].push_back(parts[r]);
    }
  }
  bool exchange_rows(int64_t rows_out, int64_t rows_in) {
    if (first_.size() != 1 || second_.size() != 1) return false;
    const auto in = split(second_[0], route_.input_splits, rows_in, ranks_);
    const auto out = split(first_[0], route_.output_splits, rows_out, ranks_);
    for (size_t r = 0; r < n_; r++) {
      plan_.sends[r].push_back(in[r]);
      plan_.receipts.push_back({out[r], {{static_cast<int>(r), 0}}});
    }
    return true;
  }

  const Collective kind_;
  const Route& route_;
  const int ranks_;
  const size_t n_;
  const int me_;
  std::vector<Extent> first_, second_;
  Plan plan_;
};

}  // namespace

bool is_told(const Extent& extent) {
  return extent.elements > 0 && small_enough(extent.type, extent.elements);
}

Route route_of(const OpInfo& info, Values inputs) {
  Route route;
  const auto& arguments = info.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < inputs.size(); i++) {
    const std::string& name = arguments[i].name();
    if (name == "process_group") route.group = class_at<c10d::ProcessGroup>(inputs[i]);
    if (name == "reduce_op") route.reduction = class_at<c10d::ReduceOp>(inputs[i]);
    if (name == "root_rank" || name == "dst" || name == "src")
      route.peer = static_cast<int>(inputs[i].toInt());
    if (name == "output_split_sizes") route.output_splits = inputs[i].toIntVector();
    if (name == "input_split_sizes") route.input_splits = inputs[i].toIntVector();
  }
  return route;
}

Plan plan_of(const OpInfo& info, const Route& route, Values inputs) {
  return Planner(info.collective, route).run(inputs);
}

#endif

}  // namespace tonnage::recorder
