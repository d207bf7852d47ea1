// The report as text for a terminal or a log file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/report.h"

namespace tonnage::report {

struct TextOptions {
  int width = 80;  // columns; less than 80 is taken as 80
  bool color = false;
  bool unicode = false;  // box and block characters; else plain ASCII
};

// For the file descriptor that the text will go to: width and colour of a terminal, NO_COLOR,
// COLUMNS, the locale's character set.
TextOptions text_options_for(int fd);

// below_headline: sentences to stand under the first line (the main finding, the command for more).
std::string render_text(const analysis::Report& report, const TextOptions& options,
                        const std::vector<std::string>& below_headline = {});

// The headline and these sentences alone.
std::string render_brief(const analysis::Report& report, const TextOptions& options,
                         const std::vector<std::string>& below_headline);

// The first line alone: "Fits: peak 9.71 GiB of 11.75 GiB, 2.04 GiB to spare".
std::string headline(const analysis::Report& report);

// "9.71 GiB", "148.0 MiB", "1.5 KiB", "512 B"; GiB = 2^30.
std::string format_bytes(uint64_t bytes);

}  // namespace tonnage::report
