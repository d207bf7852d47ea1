// One out-of-memory failure of a record, from its facts to its causes: shared by the files that
// look for one kind of cause each.
#pragma once

#include <vector>

#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_facts.h"

namespace tonnage::analysis {

class OomDiagnosis {
 public:
  OomDiagnosis(const OomFacts& facts, const Timeline& timeline);
  std::vector<Finding> run();

 private:
  Finding& add(Cause cause, Statement title, uint64_t bytes, double confidence);
  // What the memory had no room for (oom_cause.cpp).
  void too_large();
  void fragmentation();
  bool fragmented() const;
  bool fragmentation_decides() const;
  uint64_t headroom() const;
  void private_pool();
  void name_moves(Finding& finding) const;
  void kept_by_exception();
  void kept();
  void others();
  void outside();
  void cap();
  void capacity();
  // What the program made (oom_cause_model.cpp).
  void optimizer_first_step();
  void optimizer_copies();
  void model_state();
  void state_advice(Finding& finding, uint64_t state, uint64_t gradients,
                    uint64_t parameters) const;
  void gradient_advice(Finding& finding, uint64_t gradients) const;
  void logits();
  void large_sample();
  void checkpoint_inactive();
  void copies();
  void workspaces();
  void activations();
  Fact static_fact() const;
  void name_mechanisms(Finding& finding) const;
  void name_lines(Finding& finding, const std::vector<LineBytes>& lines, uint64_t whole) const;

  const OomFacts& f_;
  const Timeline& timeline_;
  uint64_t request_, held_, limit_, activations_;
  std::vector<Finding> findings_;
};

}  // namespace tonnage::analysis
