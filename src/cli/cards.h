// Which GPUs a run gets.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "abi/session.h"
#include "base/result.h"

namespace tonnage::cli {

// Without --gpu and TONNAGE_GPU.
inline constexpr const char* kDefaultGpu = "RTX 3060";

// Virtual cards: `gpu` as cards::parse_gpu_spec takes it (empty: TONNAGE_GPU, else the default);
// `memory` ("10GiB", may be empty) replaces each card's own size.
Result<std::vector<abi::CardDesc>> choose_cards(const std::string& gpu, const std::string& memory);

// The real cards behind a real driver: name, size and identity; asked in a process of its own, so
// that this one stays clean.
Result<std::vector<abi::CardDesc>> real_cards(const std::filesystem::path& driver);

}  // namespace tonnage::cli
