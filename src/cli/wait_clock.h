// How long processes waited for a processor while others had them all. Without this part, the time
// on the wall is the time that a command would take on a machine of its own: it sleeps, waits for
// files and computes in it. So limits in that time mean the same on a loaded machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace tonnage::cli {

class WaitClock {
 public:
  explicit WaitClock(pid_t root) : root_(root) {}

  // To be called now and then while the process runs, and before its end is taken (waitpid).
  void look(uint64_t now_ns);
  // Of the process and those that it started: at each time, of the one that waited most.
  uint64_t waited_ns() const { return waited_ns_; }

 private:
  void find_processes(uint64_t now_ns);

  pid_t root_;
  std::vector<pid_t> processes_;
  std::map<pid_t, uint64_t> waits_;  // by process, at the last look
  uint64_t last_look_ns_ = 0, last_search_ns_ = 0, waited_ns_ = 0;
};

}  // namespace tonnage::cli
