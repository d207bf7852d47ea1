// A file that is written beside its place, and gets its name in one step when it is whole. The
// draft has a name that nobody has: it never goes through somebody's link. What did not get its
// name is removed.
#pragma once

#include <filesystem>
#include <string>

namespace tonnage::cli {

class DraftFile {
 public:
  // flags: for open(), as O_APPEND.
  explicit DraftFile(const std::filesystem::path& place, int flags = 0);
  ~DraftFile();
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;

  int error() const { return error_; }  // errno of the constructor; 0: it is open
  int fd() const { return fd_; }
  int close();  // 0, or errno: only then is all of it written
  // Without `replace` only if nothing has that name. 0, or errno.
  int put_in_place(bool replace);
  int release();  // the open file; the caller closes it

 private:
  std::filesystem::path place_;
  std::string name_;  // "": it has its place
  int fd_ = -1, error_ = 0;
};

}  // namespace tonnage::cli
