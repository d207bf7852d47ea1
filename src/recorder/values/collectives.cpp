#include "recorder/values/collectives.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/values/engine.h"
#include "recorder/values/mailbox.h"
#include "recorder/values/plain_cpu.h"

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#define TONNAGE_HAS_C10D 1
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#endif

namespace tonnage::recorder {

Collective collective_of(std::string_view name) {
#ifdef TONNAGE_HAS_C10D
  static const std::unordered_map<std::string_view, Collective> table = {
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

// Dense device memory that is sent or received.
struct Extent {
  uint64_t address = 0;
  int64_t elements = 0;
  at::ScalarType type = at::kByte;
  size_t bytes() const { return static_cast<size_t>(elements) * c10::elementSize(type); }
  bool operator==(const Extent&) const = default;
  Extent part(int64_t first, int64_t count) const {
    return {address + static_cast<uint64_t>(first) * c10::elementSize(type), count, type};
  }
};

// Both ends know the size and the type of what passes between them, so both know whether its value
// is told.
bool told(const Extent& extent) {
  return extent.elements > 0 && small_enough(extent.type, extent.elements);
}

struct Source {
  int rank;
  size_t index;  // among what that rank sends to this one
};

struct Receipt {
  Extent to;
  std::vector<Source> sources;  // one: a copy; else reduced in this order
};

// A collective as this rank sees it.
struct Plan {
  bool valid = false;
  std::vector<std::vector<Extent>> sends;  // by receiver, this rank included
  std::vector<Receipt> receipts;
  std::vector<Extent> outputs;  // all that is written
  std::optional<c10d::ReduceOp::RedOpType> reduction;
};

// --- Reading the call ---

class Call {
 public:
  Call(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) : inputs_(inputs) {
    const auto& arguments = info.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size() && i < inputs.size(); i++) {
      const std::string& name = arguments[i].name();
      if (name == "process_group") group = class_at<c10d::ProcessGroup>(i);
      if (name == "reduce_op") reduction = class_at<c10d::ReduceOp>(i);
      if (name == "root_rank" || name == "dst" || name == "src")
        peer = static_cast<int>(inputs[i].toInt());
      if (name == "output_split_sizes") output_splits = inputs[i].toIntVector();
      if (name == "input_split_sizes") input_splits = inputs[i].toIntVector();
      if (i < 2 && name != "process_group") (i == 0 ? first_ : second_) = &inputs[i];
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::ReduceOp> reduction;
  int peer = -1;
  std::vector<int64_t> output_splits, input_splits;

  // Tensors of the first or second argument, lists of lists one after another; false if one is not
  // dense memory of a card.
  bool first(std::vector<Extent>* out) const { return first_ && extents(*first_, out); }
  bool second(std::vector<Extent>* out) const { return second_ && extents(*second_, out); }
  // Rows of the tensors of alltoall_base_.
  int64_t rows_of_first() const { return rows(first_->toTensor()); }
  int64_t rows_of_second() const { return rows(second_->toTensor()); }

 private:
  template <class T>
  c10::intrusive_ptr<T> class_at(size_t i) const {
    if (!inputs_[i].isObject()) return {};
    auto capsule = inputs_[i].toObjectRef().getSlot(0).toCapsule();
    return c10::static_intrusive_pointer_cast<T>(capsule);
  }

  static int64_t rows(const at::Tensor& t) { return t.dim() == 0 ? 1 : t.size(0); }

  static bool extents(const c10::IValue& value, std::vector<Extent>* out) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (!t.defined() || !plain_cuda(t)) return false;
      if (t.numel() != 0 && !t.is_non_overlapping_and_dense()) return false;
      out->push_back({t.numel() ? address_of(t) : 0, t.numel(), t.scalar_type()});
      return true;
    }
    if (!value.isList()) return false;
    for (const c10::IValue& element : value.toListRef())
      if (!extents(element, out)) return false;
    return true;
  }

  c10::ArrayRef<const c10::IValue> inputs_;
  const c10::IValue* first_ = nullptr;
  const c10::IValue* second_ = nullptr;
};

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

Plan plan_of(Collective kind, const Call& call) {
  Plan plan;
  const int ranks = call.group->getSize(), me = call.group->getRank();
  const auto n = static_cast<size_t>(ranks);
  plan.sends.resize(n);
  std::vector<Extent> first, second;
  const bool one_list = kind == Collective::kAllReduce || kind == Collective::kBroadcast ||
                        kind == Collective::kReduce || kind == Collective::kSend ||
                        kind == Collective::kReceive || kind == Collective::kReceiveFromAny;
  if (!call.first(&first) || (!one_list && !call.second(&second))) return plan;
  const auto from_all = [&](size_t index) {
    std::vector<Source> all;
    for (int r = 0; r < ranks; r++) all.push_back({r, index});
    return all;
  };
  const bool is_root = call.peer == me;
  switch (kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      for (size_t r = 0; r < n; r++)
        if (kind == Collective::kAllReduce || static_cast<int>(r) == call.peer)
          plan.sends[r] = first;
      for (size_t i = 0; i < first.size(); i++)
        if (kind == Collective::kAllReduce || is_root)
          plan.receipts.push_back({first[i], from_all(i)});
      break;
    case Collective::kBroadcast:
      if (is_root)
        for (size_t r = 0; r < n; r++)
          if (static_cast<int>(r) != me) plan.sends[r] = first;
      for (size_t i = 0; i < first.size() && !is_root; i++)
        plan.receipts.push_back({first[i], {{call.peer, i}}});
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      for (size_t r = 0; r < n; r++)
        if (kind == Collective::kAllGather || static_cast<int>(r) == call.peer)
          plan.sends[r] = second;
      // output[i][rank] is the rank's i-th input
      for (size_t i = 0; i < first.size(); i++)
        plan.receipts.push_back({first[i], {{static_cast<int>(i % n), i / n}}});
      break;
    case Collective::kAllGatherInto:
      for (auto& to : plan.sends) to = second;
      for (size_t i = 0; i < first.size(); i++) {
        const auto parts = split(first[i], {}, 0, ranks);
        for (size_t r = 0; r < n; r++)
          plan.receipts.push_back({parts[r], {{static_cast<int>(r), i}}});
      }
      break;
    case Collective::kScatter:
      if (is_root)
        for (size_t i = 0; i < second.size(); i++) plan.sends[i % n].push_back(second[i]);
      for (size_t i = 0; i < first.size(); i++)
        plan.receipts.push_back({first[i], {{call.peer, i}}});
      break;
    case Collective::kReduceScatter:
      for (size_t i = 0; i < second.size(); i++) plan.sends[i % n].push_back(second[i]);
      for (size_t i = 0; i < first.size(); i++) plan.receipts.push_back({first[i], from_all(i)});
      break;
    case Collective::kReduceScatterFrom:
      for (const Extent& in : second) {
        const auto parts = split(in, {}, 0, ranks);
        for (size_t r = 0; r < n; r++) plan.sends[r].push_back(parts[r]);
      }
      for (size_t i = 0; i < first.size(); i++) plan.receipts.push_back({first[i], from_all(i)});
      break;
    case Collective::kAllToAll:
      for (size_t i = 0; i < second.size(); i++) plan.sends[i % n].push_back(second[i]);
      for (size_t i = 0; i < first.size(); i++)
        plan.receipts.push_back({first[i], {{static_cast<int>(i % n), i / n}}});
      break;
    case Collective::kAllToAllInto: {
      if (first.size() != 1 || second.size() != 1) return plan;
      const auto in = split(second[0], call.input_splits, call.rows_of_second(), ranks);
      const auto out = split(first[0], call.output_splits, call.rows_of_first(), ranks);
      for (size_t r = 0; r < n; r++) {
        plan.sends[r].push_back(in[r]);
        plan.receipts.push_back({out[r], {{static_cast<int>(r), 0}}});
      }
      break;
    }
    case Collective::kSend:
      if (call.peer >= 0 && call.peer < ranks) plan.sends[static_cast<size_t>(call.peer)] = first;
      break;
    case Collective::kReceive:
      for (size_t i = 0; i < first.size(); i++)
        plan.receipts.push_back({first[i], {{call.peer, i}}});
      break;
    case Collective::kReceiveFromAny: plan.outputs = first; break;
    case Collective::kNone: return plan;
  }
  for (const Receipt& receipt : plan.receipts) plan.outputs.push_back(receipt.to);
  if (call.reduction) plan.reduction = static_cast<c10d::ReduceOp::RedOpType>(*call.reduction);
  plan.valid = true;
  return plan;
}

// --- Groups ---

uint64_t hash_of(const std::string& text) {  // FNV-1a: the same in all processes
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

// What ranks of one start of a program share, and of another do not.
std::string start_of_program() {
  std::string text;
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    const char* value = std::getenv(name);
    text += std::string(value ? value : "") + "\n";
  }
  return text;
}

// Ranks of a group call its collectives in one order, and the messages of a pair; so numbers tell
// which belong together.
struct Numbers {
  uint64_t group = 0;
  uint64_t collectives = 0;
  std::unordered_map<int, uint64_t> sent, received;  // by the other rank
};

struct Groups {
  std::mutex mutex;
  std::unordered_map<std::string, Numbers> by_name;

  // The number of this call, and the group's.
  std::pair<uint64_t, uint64_t> next(const c10d::ProcessGroup& group, Collective kind, int peer) {
    const std::string name = group.getGroupName() + "/" + std::to_string(group.getSize()) + "/" +
                             std::to_string(group.getRank());
    std::lock_guard<std::mutex> lock(mutex);
    auto [entry, is_new] = by_name.try_emplace(name);
    Numbers& numbers = entry->second;
    if (is_new) {
      numbers.group = hash_of(group.getGroupName() + "/" + std::to_string(group.getSize()) + "/" +
                              start_of_program());
      if (group.getSize() > 1) clear_posted(numbers.group, group.getRank());
    }
    if (kind == Collective::kSend) return {numbers.group, numbers.sent[peer]++};
    if (kind == Collective::kReceive) return {numbers.group, numbers.received[peer]++};
    return {numbers.group, numbers.collectives++};
  }
};
Groups& groups() {
  static auto& instance = *new Groups;
  return instance;
}

// --- Values ---

using Part = std::shared_ptr<const Contribution>;

Contribution read(const Extent& extent) {
  Contribution part;
  if (!told(extent) || !bridge().content_any(extent.address, extent.bytes())) return part;
  part.bytes.resize(extent.bytes());
  const size_t unknown =
      bridge().content_read(extent.address, part.bytes.data(), part.bytes.size());
  // A buffer of bytes or numbers may be larger than what it holds: pickled objects are padded to
  // the longest.
  const bool whole = c10::isIntegralType(extent.type, /*includeBool=*/true);
  part.known = unknown == 0 || (whole && unknown < part.bytes.size());
  if (!part.known) part.bytes.clear();
  return part;
}

// As NCCL reduces; false where it is not known how.
bool reduce(std::vector<std::string>& parts, at::ScalarType type, int64_t elements,
            c10d::ReduceOp::RedOpType how, void* out, size_t n) {
  using Op = c10d::ReduceOp;
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(at::kCPU);
  auto tensor = [&](std::string& bytes) {
    return at::from_blob(bytes.data(), {elements}, options);
  };
  at::Tensor sum = tensor(parts[0]);
  for (size_t i = 1; i < parts.size(); i++) {
    at::Tensor next = tensor(parts[i]);
    const bool truth = type == at::kBool;
    switch (how) {
      case Op::SUM:
      case Op::AVG: truth ? sum.logical_or_(next) : sum.add_(next); break;
      case Op::PRODUCT: truth ? sum.logical_and_(next) : sum.mul_(next); break;
      case Op::MIN: truth ? sum.logical_and_(next) : sum.copy_(sum.minimum(next)); break;
      case Op::MAX: truth ? sum.logical_or_(next) : sum.copy_(sum.maximum(next)); break;
      default: return false;
    }
  }
  if (how == Op::AVG) {
    if (c10::isIntegralType(type, /*includeBool=*/true))
      sum.div_(static_cast<int64_t>(parts.size()), "trunc");
    else
      sum.div_(static_cast<double>(parts.size()));
  }
  if (parts[0].size() != n) return false;
  std::memcpy(out, parts[0].data(), n);
  return true;
}

void note_silence() {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  message(
      "Values from another rank did not come in time: what was read of them is unknown. Are all "
      "ranks under one `tonnage run`?",
      true);
}

// A result that other ranks have a share in.
struct Result {
  struct Share {
    Part own;                          // of this rank, or
    std::shared_ptr<Arrival> message;  // of another one
    size_t index = 0;
  };
  std::vector<Share> shares;
  Extent to;
  std::optional<c10d::ReduceOp::RedOpType> reduction;

  bool fetch(void* out, size_t n) {
    std::vector<std::string> parts;
    bool known = true;
    for (Share& share : shares) {  // all of them, so that no message is left lying
      const Contribution* part = share.own ? share.own.get() : share.message->get(share.index);
      if (!part) note_silence();
      known = known && part && part->known && part->bytes.size() == n;
      if (known) parts.push_back(part->bytes);
    }
    if (!known) return false;
    if (parts.size() == 1) {
      std::memcpy(out, parts[0].data(), n);
      return true;
    }
    ThreadState* thread = thread_state();
    if (!thread || !reduction) return false;
    PlainCpuScope scope(*thread);
    return reduce(parts, to.type, to.elements, *reduction, out, n);
  }
};

int fetch_result(void* owner, void* out, size_t n) {
  try {
    return static_cast<Result*>(owner)->fetch(out, n) ? 1 : 0;
  } catch (...) {
    recorder().counters.exceptions.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
}
void release_result(void* owner) {
  try {
    delete static_cast<Result*>(owner);
  } catch (...) {
  }
}

void make_unknown(const Extent& extent) {
  if (extent.elements > 0 && bridge().content_any(extent.address, extent.bytes()))
    bridge().content_forget(extent.address, extent.bytes());
}

}  // namespace

struct PendingCollective {
  std::vector<std::unique_ptr<Result>> results;
  std::vector<Extent> unknown;  // written, with what is not known
};

// What the backward pass reduces on its own account, and not as part of an operator, are gradients:
// DistributedDataParallel's buckets, what FSDP scatters.
static void label_reduced(const ThreadState& thread, const OpInfo& info, const Plan& plan) {
  const bool reduces = info.collective == Collective::kAllReduce ||
                       info.collective == Collective::kReduceScatter ||
                       info.collective == Collective::kReduceScatterFrom;
  const size_t depth = thread.frames.size();
  if (!reduces || thread.backward_depth == 0 ||
      (depth > 1 && thread.frames[depth - 2].kind == OpFrame::Kind::kOperator))
    return;
  uint64_t last = 0;
  for (const auto& to : plan.sends)
    for (const Extent& extent : to)
      if (extent.elements > 0 && extent.address != std::exchange(last, extent.address))
        label(extent.address, abi::Category::kGradient, intern("gradient bucket"));
}

// What this rank gives, by receiver. The same memory is read once, however many get it.
using Given = std::vector<std::vector<Part>>;
static Given given_by(const Plan& plan) {
  Given given(plan.sends.size());
  for (size_t r = 0; r < plan.sends.size(); r++) {
    for (size_t other = 0; other < r && given[r].empty(); other++)
      if (plan.sends[other] == plan.sends[r]) given[r] = given[other];
    if (given[r].empty())
      for (const Extent& extent : plan.sends[r])
        given[r].push_back(std::make_shared<const Contribution>(read(extent)));
  }
  return given;
}

// Which messages of a group belong to this call.
struct Address {
  uint64_t group, sequence;
  bool pair;
  int me;
  MessageName to(int rank) const { return {group, sequence, pair, me, rank}; }
  MessageName from(int rank) const { return {group, sequence, pair, rank, me}; }
};

// One message for all receivers that get the same.
static void post_given(const Plan& plan, const Given& given, const Address& address) {
  std::vector<char> posted(given.size(), 0);
  for (size_t r = 0; r < given.size(); r++) {
    if (posted[r] || static_cast<int>(r) == address.me ||
        std::none_of(plan.sends[r].begin(), plan.sends[r].end(), told))
      continue;
    std::vector<MessageName> names;
    std::vector<Contribution> contents;
    for (const Part& part : given[r]) contents.push_back(*part);
    for (size_t other = r; other < given.size(); other++) {
      if (static_cast<int>(other) == address.me || posted[other] || given[other] != given[r])
        continue;
      posted[other] = 1;
      names.push_back(address.to(static_cast<int>(other)));
    }
    post(names, contents);
  }
}

// Results that may turn out to be known. Messages that none of them wants are thrown away with
// their arrivals.
static std::vector<std::unique_ptr<Result>> results_of(const Plan& plan, const Given& given,
                                                       const Address& address) {
  std::vector<std::unique_ptr<Result>> results;
  std::unordered_map<int, std::shared_ptr<Arrival>> arrivals;
  for (const Receipt& receipt : plan.receipts) {
    if (!told(receipt.to)) continue;
    auto result = std::make_unique<Result>();
    result->to = receipt.to;
    if (receipt.sources.size() > 1) result->reduction = plan.reduction;
    bool hopeless = false;
    for (const Source& source : receipt.sources) {
      Result::Share share;
      share.index = source.index;
      if (source.rank == address.me) {
        const std::vector<Part>& own = given[static_cast<size_t>(address.me)];
        if (source.index < own.size()) share.own = own[source.index];
        hopeless |= !share.own || !share.own->known;
      } else {
        auto& arrival = arrivals[source.rank];
        if (!arrival) arrival = std::make_shared<Arrival>(address.from(source.rank));
        share.message = arrival;
      }
      result->shares.push_back(std::move(share));
    }
    if (!hopeless) results.push_back(std::move(result));
  }
  return results;
}

void before_collective(ThreadState& thread, OpFrame& frame) {
  const OpInfo& info = *frame.info;
  Call call(info, inputs_of(*frame.function, info));
  if (!call.group) return;
  Plan plan = plan_of(info.collective, call);
  if (!plan.valid) return;  // tensors of the host, or none that this rank can follow
  label_reduced(thread, info, plan);
  static std::once_flag once;
  std::call_once(once, [] { bridge().account_for_kernels("nccl"); });
  bridge().operator_depth_add(1);
  frame.depth_added = true;
  frame.collective = std::make_shared<PendingCollective>();
  // Also where known values are not asked for: without what ranks tell each other,
  // DistributedDataParallel does not even start.
  if (info.collective != Collective::kReceiveFromAny) {
    const auto [group, sequence] = groups().next(*call.group, info.collective, call.peer);
    const bool pair =
        info.collective == Collective::kSend || info.collective == Collective::kReceive;
    const Address address{group, sequence, pair, call.group->getRank()};
    const Given given = given_by(plan);
    post_given(plan, given, address);
    frame.collective->results = results_of(plan, given, address);
  }
  frame.collective->unknown = std::move(plan.outputs);
}

void after_collective(ThreadState&, OpFrame& frame) {
  if (!frame.collective) return;
  for (const Extent& extent : frame.collective->unknown) make_unknown(extent);
  for (auto& result : frame.collective->results) {
    const Extent to = result->to;
    bridge().content_promise(to.address, to.bytes(), result.release(), &fetch_result,
                             &release_result);
  }
}

#else

struct PendingCollective {};
void before_collective(ThreadState&, OpFrame&) {}
void after_collective(ThreadState&, OpFrame&) {}

#endif

}  // namespace tonnage::recorder
