#include "recorder/values/collectives.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/mailbox.h"
#include "recorder/values/plain_cpu.h"

#ifdef TONNAGE_HAS_C10D
#include <ATen/ops/from_blob.h>
#endif

namespace tonnage::recorder {

#ifdef TONNAGE_HAS_C10D

namespace {

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

Contribution read(const Extent& extent) {
  Contribution part;
  if (!is_told(extent) || !bridge().content_any(extent.address, extent.bytes())) return part;
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

}  // namespace

// A result that other ranks have a share in.
struct CollectiveResult {
  struct Share {
    std::shared_ptr<const Contribution> own;  // of this rank, or
    std::shared_ptr<Arrival> message;         // of another one
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

namespace {

int fetch_result(void* owner, void* out, size_t n) {
  try {
    return static_cast<CollectiveResult*>(owner)->fetch(out, n) ? 1 : 0;
  } catch (...) {
    count_exception();
    return 0;
  }
}
void release_result(void* owner) {
  try {
    delete static_cast<CollectiveResult*>(owner);
  } catch (...) {
  }
}

void make_unknown(const Extent& extent) {
  forget_assumed(extent.address, extent.bytes());
  if (extent.elements > 0 && bridge().content_any(extent.address, extent.bytes()))
    bridge().content_forget(extent.address, extent.bytes());
}

}  // namespace

PendingCollective::PendingCollective() = default;
PendingCollective::~PendingCollective() = default;

namespace {

// PyTorch's "fake" process group stands for ranks that do not exist. It moves no data, so nothing
// is done here.
bool is_fake(c10d::ProcessGroup& group) {
  try {
    const auto backend = group.getBackend(c10::DeviceType::CUDA);
    const c10d::Backend& reference = *backend;
    return std::strstr(typeid(reference).name(), "FakeProcessGroup") != nullptr;
  } catch (...) {
    return false;
  }
}

// Tensors that the backward pass reduces outside of any operator are gradients:
// DistributedDataParallel's buckets, and what FSDP reduces and scatters.
void label_reduced(const ThreadState& thread, const OpInfo& info, const Plan& plan) {
  const bool reduces = info.collective == Collective::kAllReduce ||
                       info.collective == Collective::kReduceScatter ||
                       info.collective == Collective::kReduceScatterFrom;
  const size_t depth = thread.frames.size();
  if (!reduces || thread.phases.backward_depth == 0 ||
      (depth > 1 && thread.frames[depth - 2].kind == Frame::Kind::kOperator))
    return;
  uint64_t last = 0;
  for (const auto& to : plan.sends)
    for (const Extent& extent : to)
      if (extent.elements > 0 && extent.address != std::exchange(last, extent.address))
        label(extent.address, abi::Category::kGradient, intern("gradient bucket"));
}

using Part = std::shared_ptr<const Contribution>;

// This rank's contribution, by receiver. The same memory is read once, even if several receivers
// get it.
using Given = std::vector<std::vector<Part>>;
Given given_by(const Plan& plan) {
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
void post_given(const Plan& plan, const Given& given, const Address& address) {
  std::vector<char> posted(given.size(), 0);
  for (size_t r = 0; r < given.size(); r++) {
    if (posted[r] || static_cast<int>(r) == address.me ||
        std::none_of(plan.sends[r].begin(), plan.sends[r].end(), is_told))
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

// Results that may become known. Messages that none of them needs are deleted when they arrive.
std::vector<std::unique_ptr<CollectiveResult>> results_of(const Plan& plan, const Given& given,
                                                          const Address& address) {
  std::vector<std::unique_ptr<CollectiveResult>> results;
  std::unordered_map<int, std::shared_ptr<Arrival>> arrivals;
  for (const Receipt& receipt : plan.receipts) {
    if (!is_told(receipt.to)) continue;
    auto result = std::make_unique<CollectiveResult>();
    result->to = receipt.to;
    if (receipt.sources.size() > 1) result->reduction = plan.reduction;
    bool hopeless = false;
    for (const Source& source : receipt.sources) {
      CollectiveResult::Share share;
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

}  // namespace

void before_collective(ThreadState& thread, Frame& frame) {
  const OpInfo& info = *frame.info;
  const auto inputs = inputs_of(*frame.function, info);
  const Route route = route_of(info, inputs);
  if (!route.group) return;
  Plan plan = plan_of(info, route, inputs);
  if (!plan.valid) return;
  label_reduced(thread, info, plan);
  if (is_fake(*route.group)) return;
  static std::once_flag once;
  std::call_once(once, [] { bridge().account_for_kernels("nccl"); });
  bridge().operator_depth_add(1);
  frame.launches_accounted = true;
  auto pending = std::make_unique<PendingCollective>();
  // Also if known values are turned off: without these messages, DistributedDataParallel does not
  // even start.
  if (info.collective != Collective::kReceiveFromAny) {
    const auto [group, sequence] = groups().next(*route.group, info.collective, route.peer);
    const bool pair =
        info.collective == Collective::kSend || info.collective == Collective::kReceive;
    const Address address{group, sequence, pair, route.group->getRank()};
    const Given given = given_by(plan);
    post_given(plan, given, address);
    pending->results = results_of(plan, given, address);
  }
  pending->unknown = std::move(plan.outputs);
  frame.values.collective = std::move(pending);
}

void after_collective(Frame& frame) {
  PendingCollective& pending = *frame.values.collective;
  for (const Extent& extent : pending.unknown) make_unknown(extent);
  for (auto& result : pending.results) {
    const Extent to = result->to;
    bridge().content_promise(to.address, to.bytes(), result.release(), &fetch_result,
                             &release_result);
  }
}

#else

PendingCollective::PendingCollective() = default;
PendingCollective::~PendingCollective() = default;
void before_collective(ThreadState&, Frame&) {}
void after_collective(Frame&) {}

#endif

}  // namespace tonnage::recorder
