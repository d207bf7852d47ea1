// What growth means and what to do about it, in words.
#include <fmt/format.h>

#include <algorithm>

#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_cause.h"

namespace tonnage::analysis {
namespace {

// "18.0 MiB a step", "12.0 MiB every 4th step".
std::string rate_text(const Growth& growth, const std::string& unit, const std::string& a_unit) {
  return size_text(growth.bytes_each) + " " +
         (growth.every == 1 ? a_unit : fmt::format("every {} {}", nth(growth.every), unit));
}

const char* role_text(const GrowthPart& part, bool graph) {
  switch (part.role) {
    case GrowthPart::Role::kForward:
      return graph ? "saved of the forward pass" : "made in the forward pass";
    case GrowthPart::Role::kBackward: return "made by backward passes";
    case GrowthPart::Role::kInput: return "what the pass was given";
    case GrowthPart::Role::kBeside: return "kept";
    case GrowthPart::Role::kReplaced: return "made of what is kept, and larger each time";
  }
  return "kept";
}

// The lines that belong to it, each with its part.
void name_parts(const Growth& growth, const std::string& a_unit, Finding& finding) {
  constexpr size_t kParts = 8;
  const uint64_t least = growth.bytes_per_iteration / 100;
  size_t named = 0;
  for (const GrowthPart& part : growth.parts) {
    if (part.bytes_per_iteration < least) continue;
    if (++named > kParts) break;
    finding.evidence.push_back(
        evidence(fmt::format("of it {} {}{}, {}: {}", size_text(part.bytes_per_iteration), a_unit,
                             part.site.line.known() ? fmt::format(" {}", at(part.site)) : "",
                             tensors(part.tensors), role_text(part, growth.whole_graph)),
                 part.bytes_per_iteration, part.site));
  }
}

// Single tensors without a graph: a leak, or a cache whose bound was not reached. The file cannot
// tell; it can say what would.
void name_cache(const Growth& growth, const GrowthReport& report, const std::string& unit,
                Finding& finding) {
  const uint64_t held = growth.replaced ? 0 : growth.iterations * growth.allocations_per_iteration;
  if (report.failed) {
    finding.text +=
        " If this is a cache, a replay buffer or a queue, its bound lies beyond what the card "
        "holds.";
    return;
  }
  finding.confidence = report.iterations >= 100 ? 0.75 : report.iterations >= 6 ? 0.6 : 0.5;
  finding.text += growth.replaced
                      ? fmt::format(
                            " It may also be one that is still on its way to a length at which it "
                            "is cut or started anew: that it ends was not seen within {} {}s.",
                            report.iterations, unit)
                      : fmt::format(
                            " It may also be a cache, a replay buffer or a queue that is still "
                            "filling: no tensor of it was given back or found again within {} {}s.",
                            report.iterations, unit);
  finding.evidence.push_back(evidence(
      growth.replaced
          ? fmt::format(
                "What would show it: a run of more than {} {}s, past the length that is meant; if "
                "it is cut there, nothing grows any more and this finding is gone",
                report.iterations, unit)
          : fmt::format("What would show it: about {} are held by now; a run past the capacity "
                        "that is meant (more than {} {}s) has no growth left if it is a cache, and "
                        "this finding is gone",
                        tensors(held), report.iterations, unit)));
  if (growth.idle_iterations > 0)
    finding.evidence.push_back(evidence(fmt::format(
        "in {} of the {}s this line made nothing, as a cache does that has what is asked for",
        growth.idle_iterations, unit)));
}

}  // namespace

Finding growth_finding(const Growth& growth, const GrowthReport& report, const Timeline&) {
  Finding finding;
  finding.kind = FindingKind::kLeak;
  finding.bytes = growth.kept_bytes;
  finding.bytes_per_step = growth.bytes_per_iteration;
  finding.site = growth.site;
  const std::string unit = report.are_steps ? "step" : "iteration";
  const std::string a_unit = report.are_steps ? "a step" : "an iteration";
  const std::string each =
      growth.every == 1 ? "Every " + unit : fmt::format("Every {} {}", nth(growth.every), unit);
  const std::string rate = rate_text(growth, unit, a_unit);
  const bool eval = growth.whole_graph && !report.saw_backward && !growth.trains_elsewhere;
  // Part of the graph that a backward pass made: it was asked to be gone through again.
  const bool twice = growth.whole_graph && growth.backward_bytes * 20 >= growth.bytes_each;
  finding.cause = eval ? Cause::kEvalWithGraph : Cause::kLeak;
  finding.confidence = report.iterations >= 6 ? 0.95 : 0.85;
  if (eval) {
    finding.title = "A loop without a backward pass keeps its graphs";
    finding.text = fmt::format(
        "Each of {} {}s leaves {} behind: what autograd saves of a forward pass called {}. No "
        "backward pass ran, so nothing frees it; something that the loop keeps "
        "(an output, a loss) refers to it.",
        growth.iterations, unit, size_text(growth.bytes_per_iteration), at(growth.site));
    finding.advice.push_back(advice(fmt::format("Run the loop under torch.no_grad() or "
                                                "torch.inference_mode(): the {} would not be kept",
                                                size_text(growth.kept_bytes)),
                                    growth.kept_bytes, "with torch.inference_mode():"));
    finding.advice.push_back(
        advice("If gradients are wanted: .detach() or .item() on what is kept, and .cpu() if it is "
               "large; where losses of many batches are summed, backward() on each of them frees "
               "its graph at once"));
  } else if (growth.whole_graph) {
    finding.title =
        each + " leaves a whole graph behind" + (twice ? ", its backward pass included" : "");
    finding.text = fmt::format(
        "{} stay alive, about {} tensors: what autograd saved of a forward pass called {}{}. "
        "Something that is kept (a loss in a list or a running sum, an output, a hidden state{}) "
        "still refers to the graph.",
        rate, growth.allocations_per_iteration, at(growth.site),
        twice ? fmt::format(", and {} that a backward pass made which can be gone through again "
                            "(create_graph=True)",
                            size_text(growth.backward_bytes))
              : "",
        twice ? ", a penalty, or the gradients themselves" : "");
    if (growth.every > 1)
      finding.advice.push_back(
          advice("If this is a validation: run it under torch.no_grad() or torch.inference_mode()",
                 growth.kept_bytes, "with torch.inference_mode():"));
    if (twice)
      finding.advice.push_back(advice(
          fmt::format(
              "After backward(create_graph=True) a gradient and its graph keep each other alive: "
              "set gradients to None each {}, or take them with torch.autograd.grad(..., "
              "create_graph=True) and keep only numbers of them; that frees {} {}",
              unit, size_text(growth.bytes_per_iteration), a_unit),
          growth.kept_bytes, "optimizer.zero_grad(set_to_none=True)"));
    finding.advice.push_back(
        advice(fmt::format("Keep numbers, not tensors: .item() (or .detach()) on what is collected "
                           "{}; that frees {} {}",
                           at(growth.site), size_text(growth.bytes_per_iteration), a_unit),
               growth.kept_bytes, "losses.append(loss.item())"));
    if (growth.trains_elsewhere && !report.saw_backward) {
      finding.text +=
          " Before, this line had a backward pass after it; here none ran: a sum of losses keeps "
          "the graphs of all of them until its one backward().";
      finding.advice.insert(
          finding.advice.begin(),
          advice(fmt::format("Call backward() on each batch's own loss: gradients add up just the "
                             "same, and {} are freed each time",
                             size_text(growth.bytes_per_iteration)),
                 growth.kept_bytes, "(loss / accumulation_steps).backward()"));
    }
  } else if (growth.replaced) {
    finding.title = "What is made at one line grows with every " + unit;
    finding.text = fmt::format(
        "What was made {} and is held after each {} grows by {} {}, to {}: each time a larger "
        "tensor takes the place of the last (torch.cat with what was there, a cache of keys and "
        "values that is never cut).",
        at(growth.site), unit, size_text(growth.bytes_per_iteration), a_unit,
        size_text(growth.kept_bytes));
    finding.advice.push_back(
        advice(fmt::format("Give it an end: a fixed length that the oldest part falls out of, or "
                           "start anew; joining also holds the old and the new one at once ({})",
                           size_text(growth.kept_bytes)),
               growth.kept_bytes));
  } else if (growth.with_gradient) {
    finding.title = each + " leaves a tensor and its gradient behind";
    finding.text = fmt::format(
        "{} stay alive: what was made {}, and gradients of the same size that backward passes made "
        "of it. Something that is kept (a penalty, a loss, the tensor itself with its .grad) still "
        "refers to them.",
        rate, at(growth.site));
    finding.advice.push_back(
        advice(fmt::format(
                   "Keep numbers, not tensors: .item() (or .detach()) on what is collected; and "
                   "set .grad of what was made {} to None where it is used again. That frees {} {}",
                   at(growth.site), size_text(growth.bytes_per_iteration), a_unit),
               growth.kept_bytes, "losses.append(loss.item())"));
  } else {
    finding.title =
        each + " leaves " +
        (growth.backward && growth.category == Category::kGradient ? "gradients" : "tensors") +
        " behind";
    const std::string what =
        growth.backward
            ? "backward passes made them: gradients that are collected, or what a backward pass "
              "with create_graph=True keeps as long as something (a penalty, a loss) refers to it"
            : "no graph seems to hang on them";
    if (growth.parts.empty()) {
      finding.text = fmt::format(
          "{} made {} stay alive{}{}; {}.", rate, at(growth.site),
          growth.allocations_per_iteration == 1
              ? ", one tensor each time"
              : fmt::format(", {} tensors each time", growth.allocations_per_iteration),
          growth.size_each ? fmt::format(" of {}", size_text(*growth.size_each)) : "", what);
    } else {
      finding.text =
          fmt::format("{} stay alive, made at {} lines that belong together, above all {}; {}.",
                      rate, growth.parts.size(), at(growth.site), what);
    }
    finding.advice.push_back(
        advice(fmt::format("{}ove what is collected off the GPU (.cpu()), reduce it each {}, or "
                           "empty the list: {} {}; detach() alone does not move it",
                           growth.may_be_filling ? "If nothing bounds it, m" : "M", unit,
                           size_text(growth.bytes_per_iteration), a_unit),
               growth.kept_bytes));
    if (growth.may_be_filling)
      finding.advice.push_back(advice(fmt::format(
          "If it is a cache or a buffer: choose its capacity by the card; each {} adds {}", unit,
          size_text(growth.bytes_per_iteration))));
  }
  Evidence slope = evidence(fmt::format("{} of {} complete {}s left memory behind {}, {} in all",
                                        growth.iterations, report.iterations, unit,
                                        growth.parts.size() > 1 ? "at these lines" : "at this line",
                                        size_text(growth.kept_bytes)),
                            growth.kept_bytes, growth.site);
  slope.events = growth.events;
  if (growth.older_bytes > 0)
    finding.evidence.push_back(
        evidence(fmt::format("{} more in {} of the same size are older than the history: most "
                             "likely the same, from the {}s before",
                             size_text(growth.older_bytes), tensors(growth.older_count), unit),
                 growth.older_bytes));
  finding.evidence.push_back(std::move(slope));
  if (growth.parts.size() > 1) name_parts(growth, a_unit, finding);
  if (growth.may_be_filling) name_cache(growth, report, unit, finding);
  return finding;
}

}  // namespace tonnage::analysis
