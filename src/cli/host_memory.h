// The limit that the control groups of this machine set to a command's host memory, and whether it
// killed somebody.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tonnage::cli {

struct HostMemory {
  uint64_t limit_bytes = 0;  // the least of our group and those around it; 0: none
  uint64_t kills = 0;        // processes that the kernel killed for it, ever
};

// Of the group that this process is in; control groups of version 2, else of version 1.
HostMemory read_host_memory(const std::filesystem::path& groups = "/sys/fs/cgroup",
                            const std::filesystem::path& own = "/proc/self/cgroup");

}  // namespace tonnage::cli
