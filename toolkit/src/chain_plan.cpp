#include "tonnage/torch/chain_plan.h"

#include <algorithm>
#include <limits>

#include "tonnage/torch/memory.h"

namespace tonnage {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sizes of a chain in any unit (bytes, or slots of the budget), and what the two choices for a part
// of it need. What a part needs includes the gradient of its result, which is there whenever the
// part is run again; a part that ends with the chain is run once, before that gradient exists.
struct Sizes {
  std::vector<int64_t> output, kept, forward_extra, backward_extra;
  int64_t input_gradient = 0;

  int64_t gradient_before(size_t layer) const {
    return layer == 0 ? input_gradient : output[layer - 1];
  }

  int64_t gradient_during(size_t j) const { return j + 1 == output.size() ? 0 : output[j]; }

  // Layer i keeps what it saves, as the first of the part i..j.
  int64_t keep_needs(size_t i, size_t j) const {
    const int64_t forward = gradient_during(j) + kept[i] + forward_extra[i];
    const int64_t backward = kept[i] + output[i] + gradient_before(i) + backward_extra[i];
    return std::max(forward, backward);
  }
  // One more layer k of a run through i..k that keeps nothing, in the part i..j.
  int64_t pass_needs(size_t i, size_t k, size_t j) const {
    return gradient_during(j) + (k > i ? output[k - 1] : 0) + kept[k] + forward_extra[k];
  }
};

Sizes sizes_in(const ChainCosts& costs, int64_t unit_bytes) {
  auto units = [unit_bytes](int64_t bytes) { return (bytes + unit_bytes - 1) / unit_bytes; };
  Sizes out;
  for (const LayerCost& c : costs.layers) {
    out.output.push_back(units(c.output_bytes));
    out.kept.push_back(units(c.kept_bytes));
    out.forward_extra.push_back(units(c.forward_extra_bytes));
    out.backward_extra.push_back(units(c.backward_extra_bytes));
  }
  out.input_gradient = units(costs.input_gradient_bytes);
  return out;
}

void check_costs(const ChainCosts& costs, const char* who) {
  TORCH_CHECK_VALUE(!costs.layers.empty(), who, ": the chain has no layers");
  for (size_t i = 0; i < costs.layers.size(); i++) {
    const LayerCost& c = costs.layers[i];
    TORCH_CHECK_VALUE(
        c.output_bytes >= 0 && c.kept_bytes >= c.output_bytes && c.forward_extra_bytes >= 0 &&
            c.backward_extra_bytes >= 0 && c.forward_seconds >= 0 && c.backward_seconds >= 0,
        who, ": the costs of layer ", i,
        " make no sense: sizes and times are not negative, and kept_bytes includes output_bytes");
  }
}

// Which choice was made for a part: the end of its first checkpointed part, or kKeep.
constexpr uint32_t kKeep = 0;

// The least memory for every part, and the choice that gives it.
struct Least {
  size_t n;
  std::vector<int64_t> bytes;
  std::vector<uint32_t> choice;
  size_t at(size_t i, size_t j) const { return i * n + j; }
};

Least find_least(const Sizes& s) {
  const size_t n = s.output.size();
  Least out{n, std::vector<int64_t>(n * n, 0), std::vector<uint32_t>(n * n, kKeep)};
  for (size_t length = 1; length <= n; length++)
    for (size_t i = 0; i + length <= n; i++) {
      const size_t j = i + length - 1;
      int64_t best = s.keep_needs(i, j);
      if (length > 1) best = std::max(best, s.kept[i] + out.bytes[out.at(i + 1, j)]);
      uint32_t choice = kKeep;
      int64_t pass = 0;
      for (size_t k = i + 1; k <= j; k++) {
        pass = std::max(pass, s.pass_needs(i, k - 1, j));
        const int64_t needs = std::max(
            {pass, s.output[k - 1] + out.bytes[out.at(k, j)], out.bytes[out.at(i, k - 1)]});
        if (needs < best) {
          best = needs;
          choice = static_cast<uint32_t>(k);
        }
      }
      out.bytes[out.at(i, j)] = best;
      out.choice[out.at(i, j)] = choice;
    }
  return out;
}

void steps_of(const Least& least, size_t i, size_t j, std::vector<ChainStep>& out) {
  while (i <= j) {
    const uint32_t k = least.choice[least.at(i, j)];
    if (k == kKeep) {
      out.push_back({i, i + 1, {}});
      i++;
    } else {
      ChainStep step{i, k, {}};
      steps_of(least, i, k - 1, step.inside);
      out.push_back(std::move(step));
      i = k;
    }
  }
}

// The least time for every part and every number of free slots.
class Fastest {
 public:
  Fastest(const ChainCosts& costs, const Sizes& sizes, int64_t slots)
      : n_(costs.layers.size()), slots_(slots), sizes_(sizes) {
    forward_before_.assign(n_ + 1, 0);
    for (size_t i = 0; i < n_; i++)
      forward_before_[i + 1] = forward_before_[i] + costs.layers[i].forward_seconds;
    const size_t states = n_ * n_ * static_cast<size_t>(slots_ + 1);
    seconds_.assign(states, kNever);
    choice_.assign(states, kKeep);
    for (size_t length = 1; length <= n_; length++)
      for (size_t i = 0; i + length <= n_; i++) solve(costs, i, i + length - 1);
  }

  double seconds(size_t i, size_t j, int64_t m) const {
    return m < 0 ? kNever : seconds_[at(i, j, m)];
  }

  void steps(size_t i, size_t j, int64_t m, std::vector<ChainStep>& out) const {
    while (i <= j) {
      const uint32_t k = choice_[at(i, j, m)];
      if (k == kKeep) {
        out.push_back({i, i + 1, {}});
        m -= sizes_.kept[i];
        i++;
      } else {
        ChainStep step{i, k, {}};
        steps(i, k - 1, m, step.inside);
        out.push_back(std::move(step));
        m -= sizes_.output[k - 1];
        i = k;
      }
    }
  }

 private:
  size_t at(size_t i, size_t j, int64_t m) const {
    return (i * n_ + j) * static_cast<size_t>(slots_ + 1) + static_cast<size_t>(m);
  }

  void solve(const ChainCosts& costs, size_t i, size_t j) {
    const double own = costs.layers[i].forward_seconds + costs.layers[i].backward_seconds;
    for (int64_t m = sizes_.keep_needs(i, j); m <= slots_; m++)
      seconds_[at(i, j, m)] = own + (i == j ? 0 : seconds(i + 1, j, m - sizes_.kept[i]));
    int64_t pass = 0;
    for (size_t k = i + 1; k <= j; k++) {
      pass = std::max(pass, sizes_.pass_needs(i, k - 1, j));
      const double run = forward_before_[k] - forward_before_[i];
      const int64_t held = sizes_.output[k - 1];
      for (int64_t m = std::max(pass, held); m <= slots_; m++) {
        const double time = run + seconds_[at(k, j, m - held)] + seconds_[at(i, k - 1, m)];
        if (time < seconds_[at(i, j, m)]) {
          seconds_[at(i, j, m)] = time;
          choice_[at(i, j, m)] = static_cast<uint32_t>(k);
        }
      }
    }
  }

  size_t n_;
  int64_t slots_;
  const Sizes& sizes_;
  std::vector<double> forward_before_;
  std::vector<double> seconds_;
  std::vector<uint32_t> choice_;
};

void write_steps(const std::vector<ChainStep>& steps, std::string& out) {
  for (const ChainStep& s : steps) {
    if (!out.empty() && out.back() != '(') out += ' ';
    if (!s.checkpointed()) {
      out += std::to_string(s.begin);
      continue;
    }
    out += '(';
    write_steps(s.inside, out);
    out += ')';
  }
}

}  // namespace

std::string ChainPlan::to_string() const {
  std::string out;
  write_steps(steps, out);
  return out;
}

int64_t least_chain_bytes(const ChainCosts& costs) {
  check_costs(costs, "least_chain_bytes");
  return find_least(sizes_in(costs, 1)).bytes[costs.layers.size() - 1];
}

ChainPlan plan_chain(const ChainCosts& costs, int64_t budget_bytes) {
  check_costs(costs, "plan_chain");
  const size_t n = costs.layers.size();
  const Least least = find_least(sizes_in(costs, 1));
  const int64_t least_bytes = least.bytes[n - 1];
  TORCH_CHECK_VALUE(budget_bytes >= least_bytes, "plan_chain: ", budget_bytes, " bytes (",
                    format_bytes(budget_bytes), ") are not enough for this chain; the least is ",
                    least_bytes, " bytes (", format_bytes(least_bytes),
                    "). Give that much, a smaller batch, or layers that are divided further");
  ChainPlan plan;
  const int64_t unit = std::max<int64_t>(1, (budget_bytes + kChainSlots - 1) / kChainSlots);
  const Sizes sizes = sizes_in(costs, unit);
  const int64_t slots = budget_bytes / unit;
  const Fastest fastest(costs, sizes, slots);
  if (fastest.seconds(0, n - 1, slots) < kNever)
    fastest.steps(0, n - 1, slots, plan.steps);
  else  // it fits by less than the rounding
    steps_of(least, 0, n - 1, plan.steps);
  const ChainFigures figures = simulate_chain(costs, plan.steps);
  TORCH_INTERNAL_ASSERT(figures.peak_bytes <= budget_bytes, "the plan ", plan.to_string(),
                        " needs ", figures.peak_bytes, " bytes");
  plan.peak_bytes = figures.peak_bytes;
  plan.seconds = figures.seconds;
  return plan;
}

}  // namespace tonnage
