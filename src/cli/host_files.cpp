#include "cli/host_files.h"

#include <fmt/core.h>

#include <fstream>

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

Result<void> write(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) {
    return Error{ErrorCode::kIo, "cannot write a file of the session", file.string(),
                 "is the disk full?"};
  }
  return {};
}

std::string uuid_text(const abi::CardDesc& card) {
  std::string text = card.is_mig ? "MIG" : "GPU";
  for (size_t i = 0; i < sizeof card.uuid; i++)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        card.uuid[i]);
  return text;
}

std::string bus_id(const abi::CardDesc& card) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", card.pci_domain, card.pci_bus, card.pci_device);
}

}  // namespace

Result<void> write_host_files(const fs::path& folder, const std::vector<abi::CardDesc>& cards) {
  if (cards.empty()) return {};
  const fs::path host = folder / "host", driver = host / "proc/driver/nvidia";
  std::map<fs::path, std::string> files = {
      {host / "dev/nvidiactl", ""},
      {host / "dev/nvidia-uvm", ""},
      // TensorFlow takes the version from behind "Kernel Module" and two spaces.
      {driver / "version", fmt::format("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  "
                                       "(a virtual driver, made by Tonnage)\n",
                                       cards.front().driver_version)}};
  for (size_t i = 0; i < cards.size(); i++) {
    const abi::CardDesc& card = cards[i];
    files[host / "dev" / fmt::format("nvidia{}", i)] = "";
    files[driver / "gpus" / bus_id(card) / "information"] = fmt::format(
        "Model: \t\t {}\nGPU UUID: \t {}\nBus Type: \t PCIe\nBus Location: \t {}\nDevice Minor: \t "
        "{}\n",
        card.name, uuid_text(card), bus_id(card), i);
  }
  for (const auto& [file, text] : files)
    if (auto written = write(file, text); !written) return written;
  return {};
}

void preload_host_files(std::map<std::string, std::string>& environment, const fs::path& library) {
  std::error_code error;
  const std::string path = library.string();
  if (path.find_first_of(": \t\n") != std::string::npos || !fs::exists(library, error)) return;
  // A library that the user preloads stays the first.
  std::string& preloaded = environment["LD_PRELOAD"];
  preloaded += (preloaded.empty() ? "" : ":") + path;
  // A program with GCC's shared AddressSanitizer refuses to start where anything is preloaded before
  // it. Our library takes none of the functions that the sanitizer needs to be the first for.
  std::string& sanitizer = environment["ASAN_OPTIONS"];
  if (sanitizer.find("verify_asan_link_order") == std::string::npos)
    sanitizer += std::string(sanitizer.empty() ? "" : ":") + "verify_asan_link_order=0";
}

}  // namespace tonnage::cli
