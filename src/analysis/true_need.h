// How much memory a command really needs that ran out of memory: from the record of the same
// command on a card without limit.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/timeline/timeline.h"
#include "record/record.h"

namespace tonnage::analysis {

// timeline: of the run without limit. card_bytes: by device, what the user's cards have;
// limitless_bytes: what the cards of that run had. Remedies are counted over the whole run, moment
// by moment, since another one is the peak with less of them: what grows with the batch
// (activations, inputs, temporaries of the passes) and what stays (weights, gradients, the
// optimizer's state and its temporaries), what checkpointing the alike layers would free, the
// loss's logits.
record::TrueNeed measure_need(const Timeline& timeline, const std::vector<uint64_t>& card_bytes,
                              uint64_t limitless_bytes);

// Whether the peaks of its last two whole steps are the highest, and the same: more steps would
// tell nothing new.
bool peak_repeats(const Timeline& timeline);

}  // namespace tonnage::analysis
