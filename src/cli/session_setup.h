// Makes what the processes of one run share: a private folder with the session file and the record,
// and their environment.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/session.h"
#include "abi/session_locks.h"
#include "base/result.h"
#include "cli/install_paths.h"

namespace tonnage::cli {

struct SessionOptions {
  std::vector<abi::CardDesc> cards;  // at most kMaxDevices
  std::vector<std::string> command;
  std::filesystem::path record;  // empty: in the session's folder, removed with it
  bool force = false;            // an existing file `record` may be replaced
  double assume_selected = -1;   // < 0: upper bound
  bool known_values = true;
  bool stacks = true;
  bool pass_through = false;
};

class SessionFiles {
 public:
  // Error: the folder, the session or the record cannot be made.
  static Result<std::unique_ptr<SessionFiles>> create(const SessionOptions& options,
                                                      const InstallPaths& paths);
  ~SessionFiles();  // removes the folder
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  const abi::Session& session() const { return *session_; }
  const std::filesystem::path& session_path() const { return session_path_; }
  const std::filesystem::path& record_path() const { return record_path_; }

  // Appends a JSON chunk to the record: how the command ended.
  Result<void> write_end(const std::string& json) const;

  // The first write of the record that failed; null: none did. Once there is one, the record says
  // so at its beginning, where no room is needed for it.
  struct Failure {
    int error_number;
    int32_t pid;
  };
  std::optional<Failure> note_failure();

  // Appends what the ledger showed: the most that was in use on each device and how many processes
  // loaded the driver. No kill of a process can take that away.
  Result<void> write_account() const;

 private:
  SessionFiles() = default;
  std::filesystem::path folder_, session_path_, record_path_;
  abi::Session* session_ = nullptr;
  abi::SessionLocks locks_;
  int record_fd_ = -1;
  std::string session_json_;
  bool failure_noted_ = false;
};

// The child's environment: ours with TONNAGE_SESSION, and our folders first on LD_LIBRARY_PATH and
// PYTHONPATH. real_cuda: path of the real driver; then the pass-through driver takes the virtual
// one's place. Empty: a virtual GPU.
std::vector<std::string> child_environment(char** ours, const InstallPaths& paths,
                                           const std::filesystem::path& session_path,
                                           const std::filesystem::path& real_cuda);

// The real driver on this machine: TONNAGE_REAL_CUDA, the library path, the loader's cache, the
// usual folders.
Result<std::filesystem::path> find_real_driver(const InstallPaths& paths);

}  // namespace tonnage::cli
