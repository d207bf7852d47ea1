// How much memory a run that ran out of memory really needs, in words.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "analysis/report.h"
#include "report/words/words.h"

namespace tonnage::report {

struct CardChoice {
  std::string name;
  uint64_t total_bytes = 0;
};

// Cards of the catalogue that have as much, smallest first, at most `most` of them.
std::vector<CardChoice> cards_with(uint64_t bytes, size_t most = 4);

// The device that lacks most; null: nothing is known, or the cards have enough.
const record::DeviceNeed* deciding_need(const analysis::Report& report);

// "24.30 GiB", "at least 24.30 GiB"; "" if nothing is known.
std::string need_text(const analysis::Report& report);

// The whole of it, one sentence a line: the need, by how much the card is too small, cards that
// would do, and what each remedy comes to. Empty: nothing is known.
std::vector<std::string> need_lines(const analysis::Report& report);

// "enough: it ran, and took 11.20 GiB", "not enough alone: about 14.10 GiB, as counted".
std::string how_enough(const record::Remedy& remedy, uint64_t card_bytes);

// The words of a finding. Where it is the reason why the command ended, and what it needs is known,
// its advice says whether that is enough.
FindingWords words_of(const analysis::Finding& finding, const analysis::Explanation& explanation);

// "a batch of at most 42 % of this one (6 instead of 16)": with numbers if the command names its
// batch.
std::string remedy_text(const record::Remedy& remedy, const std::string& command);

}  // namespace tonnage::report
