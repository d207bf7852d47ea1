#include "cli/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kNoLimit = 1ull << 60;  // version 1 says none by a very large number

// "7:memory:/a/b" and "0::/a/b": the group of version 1's memory controller, or of version 2.
fs::path group_of(const fs::path& own, bool version_1) {
  std::ifstream file(own);
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_memory = ("," + controllers + ",").find(",memory,") != std::string::npos;
    if (version_1 ? is_memory : controllers.empty())
      return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

void read_limit(const fs::path& path, HostMemory& out) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  if (!(file >> bytes) || bytes == 0 || bytes >= kNoLimit) return;  // "max" is no number
  out.limit_bytes = out.limit_bytes == 0 ? bytes : std::min(out.limit_bytes, bytes);
}

void read_kills(const fs::path& path, HostMemory& out) {
  std::ifstream file(path);
  std::string name;
  uint64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") out.kills = std::max(out.kills, count);
  }
}

}  // namespace

HostMemory read_host_memory(const fs::path& groups, const fs::path& own) {
  HostMemory out;
  std::error_code ignored;
  const bool version_1 = fs::exists(groups / "memory/memory.limit_in_bytes", ignored);
  const fs::path root = version_1 ? groups / "memory" : groups;
  fs::path group = root / group_of(own, version_1);
  // In a container the path is another's, and the files at the root are ours.
  for (;; group = group.parent_path()) {
    read_limit(group / (version_1 ? "memory.limit_in_bytes" : "memory.max"), out);
    read_kills(group / (version_1 ? "memory.oom_control" : "memory.events"), out);
    if (group == root || group.string().size() <= root.string().size()) return out;
  }
}

}  // namespace tonnage::cli
