// A place in the program.
#pragma once

#include <cstdint>
#include <string>

#include "abi/event.h"

namespace tonnage::analysis {

using abi::Category;
using abi::Phase;

// A source line. file empty: not known.
struct Place {
  std::string file;
  uint32_t line = 0;
  std::string function;
  bool known() const { return !file.empty(); }
};

// Where in the program something happened.
struct Site {
  Place line;  // innermost frame that is neither PyTorch's nor Python's own; if there is none, the
               // innermost one of them
  Place user_line;  // innermost frame outside site-packages; equals `line` unless that lies in an
                    // installed package
  std::string op;   // innermost PyTorch operator; may be empty
  std::string module;  // e.g. "layer1.0.conv1"; may be empty
};

}  // namespace tonnage::analysis
