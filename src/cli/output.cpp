#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "cli/draft_file.h"
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

int write_pieces(int fd, const std::function<bool(const WritePiece&)>& produce) {
  int error = 0;
  produce([&](std::string_view piece) { return (error = write_all(fd, piece)) == 0; });
  return error;
}

Result<void> write_in_place(const fs::path& path,
                            const std::function<bool(const WritePiece&)>& produce) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  struct stat is {};
  int error = fd < 0 || ::fstat(fd, &is) != 0 ? errno : 0;
  if (error == 0 && S_ISREG(is.st_mode)) error = EEXIST;  // exchanged meanwhile
  if (error == 0) error = write_pieces(fd, produce);
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  if (error != 0) return io_error("cannot write the file", path, error);
  return {};
}

}  // namespace

void say(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "tonnage: %s\n", text.c_str());
}

void say(const Error& error) { say(error.text()); }

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-~";
  if (!text.empty() && text.front() != '~' && text.find_first_not_of(kPlain) == std::string::npos)
    return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string explain_command(const std::string& file) {
  return file == "last" ? "tonnage explain" : "tonnage explain " + shell_word(file);
}

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
  if (exists && S_ISREG(is.st_mode) && !force) {
    return Error{ErrorCode::kUsage, "the file exists", path.string(),
                 "choose another name, or replace it with --force"};
  }
  // Devices and pipes are written as they are; there is nothing to replace.
  if (exists && !S_ISREG(is.st_mode)) return write_in_place(path, produce);
  DraftFile draft(path);
  int error = draft.error();
  if (error == 0 && exists)
    ::fchmod(draft.fd(), is.st_mode & 0777);  // else it stays private: it names commands and files
  if (error == 0) error = write_pieces(draft.fd(), produce);
  if (error == 0) error = draft.close();
  if (error == 0) error = draft.put_in_place(force);
  if (error == EEXIST) {
    return Error{ErrorCode::kUsage, "the file exists", path.string(),
                 "choose another name, or replace it with --force"};
  }
  if (error != 0) return io_error("cannot write the file", path, error);
  return {};
}

}  // namespace tonnage::cli
