#include "cli/session_setup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/draft_file.h"
#include "cli/host_files.h"
#include "record/secrets.h"
#include "record/writer.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kKnownIntegerBytes = 64ull << 20;
constexpr uint64_t kKnownFloatElements = 16384;
constexpr char kFolderPrefix[] = "tonnage-";
constexpr size_t kRoomForFailure = 80;  // bytes of the session's JSON, blank until a write fails

uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Error system_error(const std::string& message, const fs::path& where,
                   const std::string& hint = "") {
  return Error{ErrorCode::kIo, message + ": " + ::strerror(errno), where.string(), hint};
}

// A folder of an earlier run that was killed: its session is there and nobody holds it any more.
bool is_lost(const fs::path& folder) {
  struct stat is {};
  if (::lstat(folder.c_str(), &is) != 0 || !S_ISDIR(is.st_mode) || is.st_uid != ::geteuid() ||
      (is.st_mode & 077) != 0)
    return false;
  const fs::path path = folder / "session";
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  // A session of another build may keep no locks: it is left alone.
  struct {
    uint32_t magic, version, struct_bytes;
  } head{};
  const bool whole = ::pread(fd, &head, sizeof head, 0) == sizeof head &&
                     head.magic == abi::kSessionMagic && head.version == abi::kSessionVersion &&
                     head.struct_bytes == sizeof(abi::Session) && ::fstat(fd, &is) == 0 &&
                     is.st_uid == ::geteuid();
  ::close(fd);
  abi::SessionLocks locks;
  if (!whole || !locks.open(path.c_str())) return false;
  bool held = false;
  for (int place = 0; place <= abi::SessionLocks::kOwner && !held; ++place)
    held = locks.is_held(place);
  locks.close();
  return !held;
}

// With what ranks kept in memory when its file system was full (recorder/values/mailbox.cpp).
void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  const fs::path spare = fs::path("/dev/shm") / folder.filename();
  struct stat is {};
  if (::lstat(spare.c_str(), &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == ::geteuid())
    fs::remove_all(spare, ignored);
}

void remove_lost_folders(const fs::path& base) {
  std::error_code error;
  std::vector<fs::path> lost;
  for (fs::directory_iterator at(base, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kFolderPrefix) && name.size() == sizeof kFolderPrefix - 1 + 6 &&
        is_lost(at->path()))
      lost.push_back(at->path());
  }
  for (const fs::path& folder : lost) remove_folder(folder);
}

// A folder of our own: in TMPDIR if that is set, else in /tmp or, where that is not writable, in
// /dev/shm.
Result<fs::path> make_folder() {
  std::vector<std::string> bases;
  if (const char* tmp = ::getenv("TMPDIR"); tmp != nullptr && *tmp != '\0') bases.push_back(tmp);
  bases.insert(bases.end(), {"/tmp", "/dev/shm"});
  for (const auto& base : bases) {
    std::error_code error;
    std::string pattern =
        (fs::absolute(base, error) / (std::string(kFolderPrefix) + "XXXXXX")).string();
    if (error || ::mkdtemp(pattern.data()) == nullptr) continue;
    remove_lost_folders(fs::path(pattern).parent_path());
    return fs::path(pattern);
  }
  return system_error("cannot make a temporary folder", bases.front(),
                      "set TMPDIR to a folder that you may write to");
}

// A record that takes the place of what has that name: a link is replaced, and what it points to
// stays as it is. -1: errno.
int replace_record(const fs::path& path) {
  struct stat is {};
  if (::lstat(path.c_str(), &is) == 0 && !S_ISREG(is.st_mode) && !S_ISLNK(is.st_mode)) {
    errno = S_ISDIR(is.st_mode) ? EISDIR : EINVAL;
    return -1;
  }
  DraftFile draft(path, O_APPEND);
  const int error = draft.put_in_place(/*replace=*/true);
  if (error == 0) return draft.release();
  errno = error;
  return -1;
}

// As the record keeps it: without what is secret.
std::vector<std::string> without_secrets(const std::vector<std::string>& command) {
  std::string bytes;
  for (const std::string& argument : command) bytes += argument + '\0';
  bytes.resize(record::hide_secrets(bytes.data(), bytes.size()));
  std::vector<std::string> out;
  for (size_t at = 0; at < bytes.size(); at += out.back().size() + 1)
    out.emplace_back(bytes.c_str() + at);
  return out;
}

template <size_t N>
Result<void> copy_path(char (&out)[N], const fs::path& path) {
  const std::string text = path.string();
  if (text.size() >= N) {
    return Error{ErrorCode::kLimit,
                 "the path is longer than " + std::to_string(N - 1) + " characters", text,
                 "use a shorter path"};
  }
  ::memcpy(out, text.c_str(), text.size() + 1);
  return {};
}

std::string session_json(const SessionOptions& options, uint64_t start_unix_ns) {
  nlohmann::json devices = nlohmann::json::array();
  for (const auto& card : options.cards) {
    devices.push_back({{"name", card.name},
                       {"card", card.catalogue_key},
                       {"total_bytes", card.total_bytes},
                       {"context_bytes", card.context_bytes}});
  }
  const char* alloc_conf = ::getenv("PYTORCH_ALLOC_CONF");
  if (alloc_conf == nullptr) alloc_conf = ::getenv("PYTORCH_CUDA_ALLOC_CONF");
  const nlohmann::json session = {
      {"schema", 1},
      {"tonnage", TONNAGE_VERSION},
      {"command", without_secrets(options.command)},
      {"start_unix_ns", start_unix_ns},
      {"devices", devices},
      {"settings",
       {{"pass_through", options.pass_through},
        {"known_values", options.known_values},
        {"stacks", options.stacks},
        {"assume_selected",
         options.assume_selected < 0 ? nlohmann::json() : nlohmann::json(options.assume_selected)},
        {"alloc_conf", alloc_conf == nullptr ? "" : alloc_conf}}}};
  return session.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<SessionFiles>> SessionFiles::create(const SessionOptions& options,
                                                           const InstallPaths& paths) {
  if (options.cards.size() > static_cast<size_t>(abi::kMaxDevices)) {
    return Error{ErrorCode::kLimit, "at most " + std::to_string(abi::kMaxDevices) + " virtual GPUs",
                 "--gpu", ""};
  }
  auto folder = make_folder();
  if (!folder) return folder.error();
  std::unique_ptr<SessionFiles> files(new SessionFiles);
  files->folder_ = *folder;
  files->session_path_ = *folder / "session";

  std::error_code error;
  files->record_path_ =
      options.record.empty() ? *folder / "record.tonnage" : fs::absolute(options.record, error);
  files->record_fd_ =
      !options.record.empty() && options.force
          ? replace_record(files->record_path_)
          : ::open(files->record_path_.c_str(),
                   O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (files->record_fd_ < 0) {
    return system_error("cannot make the record", files->record_path_,
                        errno == EEXIST ? "choose another name, or replace it with --force" : "");
  }

  const int fd = ::open(files->session_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("cannot make the session file", files->session_path_);
  // posix_fallocate and not ftruncate: on a full disk writing to a mapping would kill us and the
  // user's program.
  if (const int failed = ::posix_fallocate(fd, 0, sizeof(abi::Session)); failed != 0) {
    ::close(fd);
    errno = failed;
    return system_error("cannot make the session file", files->session_path_, "is the disk full?");
  }
  void* mapped = ::mmap(nullptr, sizeof(abi::Session), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  files->locks_.open(files->session_path_.c_str());
  files->locks_.hold(abi::SessionLocks::kOwner);
  if (mapped == MAP_FAILED)
    return system_error("cannot map the session file", files->session_path_);
  auto* session = files->session_ = static_cast<abi::Session*>(mapped);

  session->version = abi::kSessionVersion;
  session->struct_bytes = sizeof(abi::Session);
  session->device_count = static_cast<int32_t>(options.cards.size());
  session->start_ns = clock_ns(CLOCK_MONOTONIC);
  for (const auto& [to, path] : {std::pair(&session->record_path, files->record_path_),
                                 std::pair(&session->recorder_dir, paths.recorder_dir),
                                 std::pair(&session->tonnage_path, paths.executable)}) {
    if (auto copied = copy_path(*to, path); !copied) return copied.error();
  }
  session->assume_selected = options.assume_selected;
  session->known_integer_bytes = kKnownIntegerBytes;
  session->known_float_elements = kKnownFloatElements;
  session->flags = (options.pass_through ? abi::kFlagPassThrough : 0) |
                   (options.known_values ? 0 : abi::kFlagNoKnownValues) |
                   (options.stacks ? 0 : abi::kFlagNoStacks);
  for (size_t i = 0; i < options.cards.size(); ++i) session->devices[i] = options.cards[i];
  session->magic = abi::kSessionMagic;  // last: now it is a session

  if (!options.pass_through) {
    if (auto written = write_host_files(files->folder_, options.cards); !written)
      return written.error();
  }

  files->session_json_ = session_json(options, clock_ns(CLOCK_REALTIME));
  const std::string json = files->session_json_ + std::string(kRoomForFailure, ' ');
  if (!record::write_json_chunk(files->record_fd_, record::ChunkKind::kSession, json.data(),
                                json.size())) {
    return system_error("cannot write the record", files->record_path_);
  }
  return files;
}

SessionFiles::~SessionFiles() {
  if (session_ != nullptr) ::munmap(session_, sizeof(abi::Session));
  if (record_fd_ >= 0) ::close(record_fd_);
  if (!folder_.empty()) remove_folder(folder_);
  locks_.close();
}

Result<void> SessionFiles::write_end(const std::string& json) const {
  if (!record::write_json_chunk(record_fd_, record::ChunkKind::kSessionEnd, json.data(),
                                json.size())) {
    return system_error("cannot write the record", record_path_);
  }
  return {};
}

std::optional<SessionFiles::Failure> SessionFiles::note_failure() {
  const int error = session_->record_failure.error_number.load();
  if (error == 0) return std::nullopt;
  const Failure failure{error, session_->record_failure.pid.load()};
  if (failure_noted_) return failure;
  failure_noted_ = true;
  std::string json = session_json_;
  json.pop_back();
  json += ",\"record_failure\":{\"errno\":" + std::to_string(error) +
          ",\"pid\":" + std::to_string(failure.pid) + "}}";
  json.resize(session_json_.size() + kRoomForFailure, ' ');
  const int fd = ::open(record_path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat opened {
  }, ours{};
  if (fd >= 0 && ::fstat(fd, &opened) == 0 && ::fstat(record_fd_, &ours) == 0 &&
      opened.st_dev == ours.st_dev && opened.st_ino == ours.st_ino)
    record::write_json_chunk(fd, record::ChunkKind::kSession, json.data(), json.size());
  if (fd >= 0) ::close(fd);
  return failure;
}

Result<void> SessionFiles::write_account() const {
  nlohmann::json peaks = nlohmann::json::array();
  for (int i = 0; i < session_->device_count; ++i) peaks.push_back(session_->peak_bytes[i].load());
  const nlohmann::json facts = {
      {"account", {{"device_peaks", peaks}, {"drivers_loaded", session_->drivers_loaded.load()}}}};
  return write_end(facts.dump());
}

}  // namespace tonnage::cli
