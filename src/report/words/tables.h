// The tables of sentences. {0}, {1} are the figures of a statement; {0:a} and {0:s} are a unit with
// its article and in the plural.
#pragma once

#include <span>

#include "analysis/diagnosis/statement.h"

namespace tonnage::report {

struct StatementRow {
  analysis::Statement statement;
  const char* text;
};
struct RemedyRow {
  analysis::Remedy remedy;
  const char* text;
  const char* setting;  // to copy; may be empty
};

std::span<const StatementRow> out_of_memory_words();
std::span<const StatementRow> growth_words();
std::span<const StatementRow> library_words();
std::span<const RemedyRow> remedy_words();

}  // namespace tonnage::report
