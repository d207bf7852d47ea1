// Shared by the two kinds of growth: tensors that are left behind (leak.cpp, leak_survivors.cpp),
// and tensors that are replaced by larger ones (leak_replaced.cpp). Also shared by the search for
// lines that belong together (leak_together.cpp) and for lines that only fill a cache
// (leak_caches.cpp).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/diagnosis/leak.h"

namespace tonnage::analysis {

inline constexpr uint64_t kMinBytesPerIteration = 64 << 10;

using LineKey = std::tuple<std::string, uint32_t, std::string>;

LineKey key_of(const Site& site);

// What a line left behind. In Tonnage's records, backward passes have the line of the forward pass.
// So forward and backward passes have separate sums.
struct LineSum {
  Site site;
  bool backward = false;                          // made by backward passes
  std::vector<uint64_t> bytes, counts;            // by iteration: what is alive at the end
  std::vector<uint32_t> made;                     // by iteration: all that it made
  std::vector<uint32_t> first_event, last_event;  // by iteration: of what is alive at the end
  std::map<uint64_t, uint64_t> sizes;   // requested size -> count, in the iterations that count
  std::map<uint32_t, uint64_t> stacks;  // stack -> bytes, in the iterations that count
  std::map<Category, uint64_t> categories;
  uint64_t total_bytes = 0, activation_bytes = 0, forward_bytes = 0, factory_bytes = 0;
  uint64_t born_late = 0, died_late = 0;  // in the last two iterations: held beyond their own one
  uint32_t youngest_died = 0;             // of died_late: the event that made it
  std::vector<uint64_t> events;           // a few of the allocations
  uint64_t inside = 0;         // in the iterations that count, made between modules of PyTorch
  std::set<uint32_t> modules;  // by them, where they are named
};

// Which of the iterations that count left something behind at a line.
struct Pattern {
  std::vector<size_t> at;  // iterations with survivors, in order
  size_t every = 0;        // 1: in nearly each; n: in every n-th; 0: no pattern
};

// One line that grows, not yet joined with others.
struct GrowingLine {
  const LineSum* sum = nullptr;
  Pattern pattern;
  Growth growth;
};

// Only iterations [first_old, end_old) count; and what a forward pass makes in them, for
// comparison.
struct GrowthRange {
  size_t first_old = 0, end_old = 0;
  uint64_t forward_bytes = 0;
};

// What is asked of one range of iterations.
struct GrowthQuestion {
  int device = 0;
  uint32_t process = 0;
  const std::vector<Iteration>& iterations;
  GrowthRange range;
  size_t end_kept = 0;     // what iterations before it made counts as kept
  uint64_t end_event = 0;  // the moment that is looked at
  bool failed = false;     // end_event is an out-of-memory event
};

struct Survivors {
  std::map<std::pair<LineKey, bool>, LineSum> lines;  // true: made by backward passes
  uint64_t forward_bytes = 0;  // made inside modules, in the iterations that count
};

// What iterations before end_kept made and what is alive at end_event, by line.
Survivors survivors_of(const Timeline& timeline, const GrowthQuestion& question);
// Of these lines: bytes that they made before the iterations, that were kept for a while, and that
// were given back.
std::map<LineKey, uint64_t> released_before(const Timeline& timeline,
                                            const GrowthQuestion& question,
                                            const std::map<LineKey, uint64_t>& lines);

// Joins lines that belong together: tensors that autograd saves in a pass, the inputs of the pass,
// and what a backward pass keeps of it; or tensors that backward passes made; or tensors that one
// function keeps. Each line is in one answer at most.
std::vector<Growth> join_lines(const Timeline& timeline, uint32_t process,
                               std::vector<GrowingLine> lines, const GrowthRange& range,
                               bool failed);

// Whether a line that grows behaves like a cache that is filling: ever fewer tensors; the oldest
// freed for each new one; or one tensor for each size, and sometimes none.
bool fills_a_cache(const Timeline& timeline, const GrowingLine& line, const GrowthRange& range);
// Iterations in which the line made nothing at all.
uint32_t idle_iterations(const LineSum& sum, const GrowthRange& range);

uint64_t median(std::vector<uint64_t> values);

// Made within a function that generates, decodes or samples.
bool generates(const record::Record& record, uint32_t stack);

// The iteration that contains the event; SIZE_MAX if none does.
size_t iteration_of(const std::vector<Iteration>& iterations, uint32_t event);

// What stays by design: made once for each parameter, layer or stream, even if late (layers that
// are unfrozen one by one get their optimizer state one by one).
bool stays_by_design(const Timeline& timeline, const Allocation& a);

// Lines whose tensors are replaced by larger ones: joined to themselves each time, a cache that is
// never cut. left_behind: bytes that survive one by one, which is the other kind of growth. failed:
// end_event is an out-of-memory event.
std::vector<Growth> find_replaced(const Timeline& timeline, int device, uint32_t process,
                                  const std::vector<Iteration>& iterations, uint64_t end_event,
                                  bool failed, const std::map<LineKey, uint64_t>& left_behind);

// What is said of growths once they are known (leak_details.cpp).
void find_older(const Timeline& timeline, const GrowthQuestion& question, GrowthReport& report);
void add_replaced(Growth replaced, GrowthReport& report);
bool gone_at_the_end(const Timeline& timeline, const Growth& growth);
void mark_mechanism(const Timeline& timeline, Growth& growth);

}  // namespace tonnage::analysis
