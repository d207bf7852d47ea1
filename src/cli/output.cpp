#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "cli/exit_codes.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

Error io_error(const std::string& what, const fs::path& path, int error,
               const std::string& hint = "") {
  return Error{ErrorCode::kIo, what + ": " + ::strerror(error), path.string(), hint};
}

int write_all(int fd, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) at += static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

void say(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "tonnage: %s\n", text.c_str());
}

void say(const Error& error) { say(error.text()); }

int exit_code_of(const Error& error) {
  return error.code == ErrorCode::kUsage ? kExitUsage : kExitFailure;
}

Result<void> write_file(const fs::path& path, const std::string& text, bool force) {
  return write_file(
      path, [&](const WritePiece& write) { return write(text); }, force);
}

Result<void> write_file(const fs::path& path, const std::function<bool(const WritePiece&)>& produce,
                        bool force) {
  struct stat is {};
  const bool exists = ::stat(path.c_str(), &is) == 0;
  // Devices and pipes are written as they are; there is nothing to replace.
  const bool in_place = exists && !S_ISREG(is.st_mode);
  if (exists && !in_place && !force) {
    return Error{ErrorCode::kUsage, "the file exists", path.string(),
                 "choose another name, or replace it with --force"};
  }
  const fs::path written = exists && !in_place ? fs::path(path.string() + ".tonnage-new") : path;
  const int fd =
      ::open(written.c_str(),
             O_WRONLY | O_CLOEXEC | (in_place ? 0 : O_CREAT | (exists ? O_TRUNC : O_EXCL)), 0666);
  if (fd < 0) return io_error("cannot write the file", path, errno);
  int error = 0;
  produce([&](std::string_view piece) { return (error = write_all(fd, piece)) == 0; });
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && written != path && ::rename(written.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    if (!in_place) ::unlink(written.c_str());
    return io_error("cannot write the file", path, error);
  }
  return {};
}

}  // namespace tonnage::cli
