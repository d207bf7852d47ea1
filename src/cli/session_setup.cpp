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

#include "cli/host_files.h"
#include "record/writer.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kKnownIntegerBytes = 64ull << 20;
constexpr uint64_t kKnownFloatElements = 16384;

uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Error system_error(const std::string& message, const fs::path& where,
                   const std::string& hint = "") {
  return Error{ErrorCode::kIo, message + ": " + ::strerror(errno), where.string(), hint};
}

// A folder of our own: in TMPDIR if that is set, else in /tmp or, where that is not writable, in
// /dev/shm.
Result<fs::path> make_folder() {
  std::vector<std::string> bases;
  if (const char* tmp = ::getenv("TMPDIR"); tmp != nullptr && *tmp != '\0') bases.push_back(tmp);
  bases.insert(bases.end(), {"/tmp", "/dev/shm"});
  for (const auto& base : bases) {
    std::error_code error;
    std::string pattern = (fs::absolute(base, error) / "tonnage-XXXXXX").string();
    if (!error && ::mkdtemp(pattern.data()) != nullptr) return fs::path(pattern);
  }
  return system_error("cannot make a temporary folder", bases.front(),
                      "set TMPDIR to a folder that you may write to");
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
      {"command", options.command},
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
  const int exclusive = options.record.empty() || !options.force ? O_EXCL : O_TRUNC;
  files->record_fd_ = ::open(files->record_path_.c_str(),
                             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | exclusive, 0666);
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

  const std::string json = session_json(options, clock_ns(CLOCK_REALTIME));
  if (!record::write_json_chunk(files->record_fd_, record::ChunkKind::kSession, json.data(),
                                json.size())) {
    return system_error("cannot write the record", files->record_path_);
  }
  return files;
}

SessionFiles::~SessionFiles() {
  if (session_ != nullptr) ::munmap(session_, sizeof(abi::Session));
  if (record_fd_ >= 0) ::close(record_fd_);
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Result<void> SessionFiles::write_end(const std::string& json) const {
  if (!record::write_json_chunk(record_fd_, record::ChunkKind::kSessionEnd, json.data(),
                                json.size())) {
    return system_error("cannot write the record", record_path_);
  }
  return {};
}

}  // namespace tonnage::cli
