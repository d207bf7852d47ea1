// The words of a diagnosis: every sentence that text, JSON and HTML say of findings is from here.
//
//   const FindingWords words = words_of(finding);
//   words.title, words.text, words.evidence[0].text, words.advice[0].text
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::report {

struct AdviceWords {
  std::string text;     // one sentence in the user's own numbers, without a full stop
  std::string setting;  // to copy: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"; may be empty
};

struct FindingWords {
  std::string title;
  std::string text;                   // two or three sentences
  std::vector<std::string> evidence;  // as Finding::evidence
  std::vector<AdviceWords> advice;    // as Finding::advice
};

FindingWords words_of(const analysis::Finding& finding);
std::string words_of(const analysis::Fact& fact);
std::string words_of(const std::vector<analysis::Fact>& facts);
AdviceWords words_of(const analysis::Advice& advice);

// One paragraph about the whole.
std::string summary_of(const analysis::Explanation& explanation);
// What cannot be known, and what the reader has to say of the file.
std::vector<std::string> limits_of(const analysis::Explanation& explanation);
std::vector<std::string> notes_of(const analysis::Explanation& explanation);

// "at train.py:9"; where no line is known, "in aten::mm"; else that there is none.
std::string at_text(const analysis::Site& site);
// "vLLM".
const char* library_title(sources::LogFramework framework);

}  // namespace tonnage::report
