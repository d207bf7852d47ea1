// While a command runs: says at once on standard error when its record cannot be written any more.
#pragma once

#include "cli/session_setup.h"

namespace tonnage::cli {

class RecordWatch {
 public:
  explicit RecordWatch(SessionFiles& files) : files_(files) {}
  void look();                               // cheap: called several times a second
  bool has_failed() const { return said_; }  // and it was said

 private:
  SessionFiles& files_;
  bool said_ = false;
};

}  // namespace tonnage::cli
