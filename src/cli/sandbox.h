// Protection for the second run of the user's command, which must leave nothing behind. It can
// write files only in its own temporary folder, in /dev and in caches (Landlock). It cannot reach
// other machines (a network namespace, if the kernel allows one).
#pragma once

#include <string>
#include <vector>

namespace tonnage::cli {

// Whether this kernel can keep a process from writing files.
bool can_protect_files();

// For the calling process and all that it starts; to be called in a child between fork and exec.
// writable: folders. False: not protected.
bool protect_files(const std::vector<std::string>& writable);

// Leaves only the loopback interface. False: not possible here.
bool leave_network();

}  // namespace tonnage::cli
