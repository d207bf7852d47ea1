#include "cli/record_watch.h"

#include <errno.h>
#include <string.h>

#include <string>

#include "cli/output.h"

namespace tonnage::cli {

void RecordWatch::look() {
  if (said_) return;
  const auto failure = files_.note_failure();
  if (!failure) return;
  said_ = true;
  const bool size_limit = failure->error_number == EFBIG;
  // The session's own folder goes away: what it lies in is named.
  std::filesystem::path folder = files_.record_path().parent_path();
  if (folder == files_.session_path().parent_path()) folder = folder.parent_path();
  say("the record cannot be written any more (process " + std::to_string(failure->pid) + ": " +
      ::strerror(failure->error_number) +
      "): what happens from now on is not in it, so it gives no verdict\n  " +
      (size_limit
           ? "raise the limit on the size of files (ulimit -f)"
           : "make room in " + folder.string() + ", or name another place: TMPDIR, --record"));
}

}  // namespace tonnage::cli
