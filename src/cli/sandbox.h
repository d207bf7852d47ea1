// For a second run of the user's command: it must leave nothing behind. Files can be written in its
// own temporary folder, in /dev and in caches only (Landlock), and the network ends at this machine
// (a network namespace, where the kernel lets us make one).
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
