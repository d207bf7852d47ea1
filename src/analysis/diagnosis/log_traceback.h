// Where the program failed, found in the Python traceback before an out-of-memory message.
#pragma once

#include <optional>

#include "analysis/place.h"
#include "sources/messages/log_oom.h"

namespace tonnage::analysis {

struct TraceFacts {
  std::optional<Site> site;  // the user's own innermost line, with the library's beside it
  bool backward = false, optimizer = false, first_state = false, loss = false, evaluation = false,
       loading = false, moving = false;
  bool collects = false;  // predictions of many batches are put together
  bool saving = false;    // a whole state is gathered
  bool pinning = false;   // host memory is pinned
  bool starting = false;  // the context is made
  bool torch = false;     // PyTorch's own functions are in it
  // An inference server, or another program that runs models and does not train them.
  std::optional<sources::LogFramework> server;
};

TraceFacts read_traceback(const sources::LogOom& oom);

}  // namespace tonnage::analysis
