#include "cli/draft_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace tonnage::cli {
namespace {

int rename_to(const std::string& from, const std::filesystem::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

// 0, or errno: EEXIST if something has that name.
int take_free_name(const std::string& from, const std::filesystem::path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) {
    ::unlink(from.c_str());
    return 0;
  }
  if (errno == EEXIST) return EEXIST;
  // Some file systems have no links.
  struct stat is {};
  if (::lstat(to.c_str(), &is) == 0) return EEXIST;
  return rename_to(from, to);
}

}  // namespace

DraftFile::DraftFile(const std::filesystem::path& place, int flags)
    : place_(place), name_(place.string() + ".XXXXXX") {
  fd_ = ::mkostemp(name_.data(), flags | O_CLOEXEC);
  if (fd_ >= 0) return;
  error_ = errno;
  name_.clear();
}

DraftFile::~DraftFile() {
  close();
  if (!name_.empty()) ::unlink(name_.c_str());
}

int DraftFile::close() {
  const int fd = release();
  return fd < 0 || ::close(fd) == 0 ? 0 : errno;
}

int DraftFile::put_in_place(bool replace) {
  if (error_ != 0) return error_;
  const int error = replace ? rename_to(name_, place_) : take_free_name(name_, place_);
  if (error == 0) name_.clear();
  return error;
}

int DraftFile::release() { return std::exchange(fd_, -1); }

}  // namespace tonnage::cli
