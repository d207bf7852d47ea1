// What growth means and what to do about it.
#include <algorithm>

#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_cause.h"

namespace tonnage::analysis {
namespace {

using S = Statement;
using R = Remedy;
using Role = GrowthPart::Role;

constexpr size_t kShownParts = 8;
constexpr double kSureConfidence = 0.95;

Statement part_statement(Role role, bool graph) {
  switch (role) {
    case Role::kForward: return graph ? S::kPartSavedOfForward : S::kPartMadeInForward;
    case Role::kBackward: return S::kPartMadeByBackward;
    case Role::kInput: return S::kPartGiven;
    case Role::kBeside: return S::kPartKept;
    case Role::kReplaced: return S::kPartLarger;
  }
  return S::kPartKept;
}

class GrowthFinding {
 public:
  GrowthFinding(const Growth& growth, const GrowthReport& report)
      : g_(growth), report_(report), unit_(unit(report.are_steps)) {
    each_.kind = Figure::Kind::kEvery;
    each_.every = growth.every;
    each_.are_steps = report.are_steps;
    rate_.kind = Figure::Kind::kRate;
    rate_.number = growth.bytes_each;
    rate_.every = growth.every;
    rate_.are_steps = report.are_steps;
    per_ = bytes(growth.bytes_per_iteration);
    // A part of the graph was made by a backward pass with create_graph=True.
    twice_ = growth.whole_graph && growth.backward_bytes * 20 >= growth.bytes_each;
  }

  Finding make() {
    f_.kind = FindingKind::kLeak;
    f_.bytes = g_.kept_bytes;
    f_.bytes_per_step = g_.bytes_per_iteration;
    f_.site = g_.site;
    f_.confidence = report_.iterations >= 6 ? kSureConfidence : 0.85;
    f_.cause = Cause::kLeak;
    if (g_.in_checkpoint) {
      hooked();
    } else if (g_.whole_graph && !report_.saw_backward && !g_.trains_elsewhere) {
      evaluation();
    } else if (g_.whole_graph) {
      graph();
    } else if (g_.replaced) {
      replaced();
    } else if (g_.with_gradient) {
      with_gradient();
    } else if (g_.category == Category::kOptimizerState) {
      optimizers();
    } else {
      tensors_left();
    }
    evidence_of_slope();
    if (g_.parts.size() > 1) parts();
    if (g_.may_be_filling && g_.category != Category::kOptimizerState) cache();
    return std::move(f_);
  }

 private:
  void remedy(Remedy what, std::vector<Figure> figures = {}) {
    f_.advice.push_back(advice(what, std::move(figures), g_.kept_bytes));
  }

  void evaluation() {
    f_.cause = Cause::kEvalWithGraph;
    f_.title = fact(S::kTitleEvalGraphs);
    f_.text = {fact(S::kEvalGraphs, {count(g_.iterations), unit_, per_, at(g_.site)})};
    remedy(R::kNoGrad, {bytes(g_.kept_bytes)});
    f_.advice.push_back(advice(R::kDetachIfWanted));
  }

  // Hooks on tensors that a checkpoint recomputed keep these tensors alive.
  void hooked() {
    f_.title = fact(S::kTitleHookedCheckpoint, {each_});
    f_.text = {
        fact(S::kHookedCheckpoint, {rate_, count(g_.allocations_per_iteration), at(g_.site)})};
    remedy(R::kNoHooksInCheckpoint, {per_, unit_});
    remedy(R::kNonReentrant);
  }

  void graph() {
    f_.title = fact(twice_ ? S::kTitleGraphWithBackward : S::kTitleGraph, {each_});
    f_.text.push_back(
        fact(S::kGraphStays, {rate_, count(g_.allocations_per_iteration), at(g_.site)}));
    if (twice_) f_.text.push_back(fact(S::kGraphOfBackward, {bytes(g_.backward_bytes)}));
    f_.text.push_back(fact(twice_ ? S::kSomethingHoldsGraphTwice : S::kSomethingHoldsGraph));
    if (g_.trains_elsewhere && !report_.saw_backward) {
      f_.text.push_back(fact(S::kSumOfLosses));
      remedy(R::kBackwardEach, {per_});
    }
    if (g_.every > 1) remedy(R::kNoGradIfValidation);
    if (twice_) remedy(R::kGradientsToNone, {unit_, per_});
    remedy(R::kNumbersNotTensors, {at(g_.site), per_, unit_});
  }

  void replaced() {
    f_.title = fact(S::kTitleGrowsInPlace, {unit_});
    f_.text = {fact(S::kGrowsInPlace, {at(g_.site), unit_, per_, bytes(g_.kept_bytes)})};
    if (g_.in_evaluation_collect) remedy(R::kEvalAccumulation);
    remedy(R::kGiveItAnEnd, {bytes(g_.kept_bytes)});
  }

  void with_gradient() {
    f_.title = fact(S::kTitleTensorAndGradient, {each_});
    f_.text = {fact(S::kTensorAndGradient, {rate_, at(g_.site)})};
    remedy(R::kNumbersAndNoGrad, {at(g_.site), per_, unit_});
  }

  void optimizers() {
    f_.title = fact(S::kTitleOptimizersLeft, {each_});
    f_.text = {fact(S::kOptimizersLeft, {rate_, at(g_.site)})};
    remedy(R::kOneOptimizer, {per_, unit_});
  }

  void tensors_left() {
    const bool gradients = g_.backward && g_.category == Category::kGradient;
    f_.title = fact(gradients ? S::kTitleGradientsLeft : S::kTitleTensorsLeft, {each_});
    if (!g_.parts.empty())
      f_.text.push_back(fact(S::kStayFromLines, {rate_, count(g_.parts.size()), at(g_.site)}));
    else if (g_.size_each && g_.allocations_per_iteration == 1)
      f_.text.push_back(fact(S::kStayOneOfSize, {rate_, at(g_.site), bytes(*g_.size_each)}));
    else if (g_.size_each)
      f_.text.push_back(
          fact(S::kStayManyOfSize,
               {rate_, at(g_.site), count(g_.allocations_per_iteration), bytes(*g_.size_each)}));
    else
      f_.text.push_back(
          fact(S::kStayMany, {rate_, at(g_.site), tensors(g_.allocations_per_iteration)}));
    f_.text.push_back(fact(g_.backward ? S::kBackwardMadeThem : S::kNoGraphOnThem));
    if (g_.in_evaluation_collect) remedy(R::kEvalAccumulation);
    remedy(g_.may_be_filling ? R::kMoveOffIfUnbounded : R::kMoveOff, {unit_, per_});
    if (g_.may_be_filling) f_.advice.push_back(advice(R::kCacheCapacity, {unit_, per_}));
  }

  void evidence_of_slope() {
    if (g_.older_bytes > 0)
      f_.evidence.push_back(evidence(
          fact(S::kOlderOfSameSize, {bytes(g_.older_bytes), tensors(g_.older_count), unit_}),
          g_.older_bytes));
    Evidence slope = evidence(
        fact(g_.parts.size() > 1 ? S::kLeftAtLines : S::kLeftAtLine,
             {count(g_.iterations), count(report_.iterations), unit_, bytes(g_.kept_bytes)}),
        g_.kept_bytes, g_.site);
    slope.events = g_.events;
    f_.evidence.push_back(std::move(slope));
  }

  // The lines that belong to it, each with its part.
  void parts() {
    const uint64_t least = g_.bytes_per_iteration / 100;
    size_t named = 0;
    for (const GrowthPart& part : g_.parts) {
      if (part.bytes_per_iteration < least) continue;
      if (++named > kShownParts) break;
      f_.evidence.push_back(evidence(
          fact(part_statement(part.role, g_.whole_graph),
               {bytes(part.bytes_per_iteration), unit_, at(part.site), tensors(part.tensors)}),
          part.bytes_per_iteration, part.site));
    }
  }

  // Single tensors without a graph: a leak, or a cache that is not full. The file does not show
  // which. The finding says how to find out.
  void cache() {
    if (report_.failed) {
      f_.text.push_back(fact(S::kCacheBeyondCard));
      return;
    }
    f_.confidence = report_.iterations >= 100 ? 0.75 : report_.iterations >= 6 ? 0.6 : 0.5;
    const Figure iterations = count(report_.iterations);
    if (g_.replaced) {
      f_.text.push_back(fact(S::kMayBeCutLater, {iterations, unit_}));
      f_.evidence.push_back(evidence(fact(S::kWouldShowCut, {iterations, unit_})));
    } else {
      const uint64_t held = g_.iterations * g_.allocations_per_iteration;
      f_.text.push_back(fact(S::kMayBeFilling, {iterations, unit_}));
      f_.evidence.push_back(evidence(fact(S::kWouldShowFull, {tensors(held), iterations, unit_})));
    }
    if (g_.idle_iterations > 0)
      f_.evidence.push_back(evidence(fact(S::kMadeNothingIn, {count(g_.idle_iterations), unit_})));
  }

  const Growth& g_;
  const GrowthReport& report_;
  Figure unit_, each_, rate_, per_;
  bool twice_ = false;
  Finding f_;
};

}  // namespace

Finding growth_finding(const Growth& growth, const GrowthReport& report) {
  return GrowthFinding(growth, report).make();
}

}  // namespace tonnage::analysis
