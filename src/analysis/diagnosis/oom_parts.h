// The parts of collect_oom_facts.
#pragma once

#include <vector>

#include "analysis/diagnosis/oom_facts.h"

namespace tonnage::analysis {

// What is alive at the failure: by category, by line, by mechanism (oom_live.cpp).
void read_live(const Timeline& timeline, OomFacts& facts);
// What belongs to the loss's input (oom_logits.cpp).
void read_logits(const Timeline& timeline, const std::vector<const Allocation*>& live,
                 OomFacts& facts);
// The failing step beside those before it (oom_steps.cpp).
void predict_state(const Timeline& timeline, OomFacts& facts);
void compare_with_earlier_steps(const Timeline& timeline, OomFacts& facts);

}  // namespace tonnage::analysis
