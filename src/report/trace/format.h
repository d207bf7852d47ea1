// What a trace file is told, whatever its format: groups (a device, a process) with counters,
// slices and instants. The walk over a record (walk.h) calls it; the formats write.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "analysis/timeline/breakdown.h"

namespace tonnage::report::trace {

struct Address {
  uint64_t value;
};
// The frames, innermost first, one a line. Stacks repeat: the number tells them apart within a
// source.
struct StackText {
  uint32_t number;
  std::string_view text;
};
struct Argument {
  std::string_view name;
  std::variant<uint64_t, bool, Address, StackText, std::string_view> value;
};
using Arguments = std::span<const Argument>;

struct CounterKinds {
  bool allocator = false, device = false;     // which of the counters are known
  bool category[analysis::kCategoryCount]{};  // which categories ever have memory
};

inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

class Format {
 public:
  virtual ~Format() = default;
  // How much of a device the format takes: beyond it counters keep the peak of each equal share of
  // the events, and the smallest blocks are left out.
  virtual size_t most_counter_points() const { return kNoLimit; }
  virtual size_t most_blocks() const { return kNoLimit; }

  virtual void begin_source() = 0;  // stacks are numbered anew
  virtual void group(int group, const std::string& name) = 0;
  virtual void counters(int group, uint64_t ns, const analysis::CategoryPoint& point,
                        const CounterKinds& kinds) = 0;
  // A slice that may cross others. Of one group and category they come in the order of their begin.
  virtual void crossing_slice(int group, const char* category, const std::string& name,
                              uint64_t from_ns, uint64_t to_ns, Arguments arguments) = 0;
  // A track of slices that nest, before its first slice.
  virtual void track(int group, int track, const std::string& name, int order) = 0;
  virtual void slice(int group, int track, const char* category, const std::string& name,
                     uint64_t from_ns, uint64_t to_ns) = 0;
  virtual void instant(int group, const char* category, const std::string& name, uint64_t ns,
                       Arguments arguments) = 0;
  // What must be known of the trace as a whole.
  virtual void fact(std::string name, std::string value) = 0;

  virtual bool ok() const = 0;  // false: the sink refused, nothing more is wanted
  virtual bool finish() = 0;
};

}  // namespace tonnage::report::trace
