// The user's command as a child process: started in our process group on our terminal, signals
// passed on, waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tonnage::cli {

struct ChildOptions {
  std::vector<std::string> command;      // the program is looked up on PATH, as a shell does
  std::vector<std::string> environment;  // "NAME=value", complete
  bool stdout_to_stderr = false;
  std::function<void()> watch;  // called now and then while the command runs; may be empty
};

struct ChildExit {
  int code = 0;    // what we exit with: the child's own, or 128 + signal
  int signal = 0;  // that killed it; 0: it exited
  bool core_dumped = false;
  uint64_t wall_ns = 0;
  uint64_t own_ns = 0;  // without the time in which other processes had all processors
  // The command could not be started: code is 127 (not found) or 126 (found, cannot be run), error
  // says why.
  bool started = true;
  std::string error;
};

// Blocks until the child has ended. SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT and SIGQUIT reach the
// command once: those of the terminal and those sent to our process group by themselves, those sent
// to us alone are passed on. From then on SIGPIPE is ignored by us. Error: no process could be made.
Result<ChildExit> run_child(const ChildOptions& options);

}  // namespace tonnage::cli
