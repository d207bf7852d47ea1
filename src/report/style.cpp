#include "report/style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tonnage::report {
namespace {

// Length of the valid UTF-8 sequence at the start of the text; 0 if there is none.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t n = lead < 0x80                         ? 1
             : (lead >> 5) == 6 && lead >= 0xc2  ? 2
             : (lead >> 4) == 14                 ? 3
             : (lead >> 3) == 30 && lead <= 0xf4 ? 4
                                                 : 0;
  if (n == 0 || n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return n;
}

const char* code(Color color) {
  switch (color) {
    case Color::kBold: return "\x1b[1m";
    case Color::kDim: return "\x1b[2m";
    case Color::kRed: return "\x1b[31m";
    case Color::kGreen: return "\x1b[32m";
    case Color::kYellow: return "\x1b[33m";
    case Color::kBlue: return "\x1b[34m";
    case Color::kMagenta: return "\x1b[35m";
    case Color::kCyan: return "\x1b[36m";
    case Color::kNone: break;
  }
  return "";
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
  const auto value = static_cast<double>(bytes);
  // A value that would print as 1024.0 of a unit goes to the next.
  if (value >= kGiB - 0.05 * kMiB) return fmt::format("{:.2f} GiB", value / kGiB);
  if (value >= kMiB - 0.05 * kKiB) return fmt::format("{:.1f} MiB", value / kMiB);
  if (bytes >= kKiB) return fmt::format("{:.1f} KiB", value / kKiB);
  return fmt::format("{} B", bytes);
}

int columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string Style::clean(std::string_view text) const {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = sequence_length(text.substr(i));
    const auto lead = static_cast<unsigned char>(text[i]);
    // C1 control characters are two bytes in UTF-8, and terminals obey them too.
    const bool control = lead < 0x20 || lead == 0x7f ||
                         (n == 2 && lead == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (n == 0 || control || (n > 1 && !options_.unicode)) {
      out += '?';
    } else {
      out += text.substr(i, n);
    }
    i += std::max<size_t>(n, 1);
  }
  return out;
}

std::string Style::paint(std::string_view text, Color color) const {
  if (!options_.color || color == Color::kNone || text.empty()) return std::string(text);
  return fmt::format("{}{}\x1b[0m", code(color), text);
}

std::string Style::bar(double share, int cells) const {
  share = std::clamp(share, 0.0, 1.0);
  if (!options_.unicode) {
    auto full = static_cast<int>(std::lround(share * cells));
    if (full == 0 && share > 0.002) full = 1;
    return std::string(full, '#');
  }
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto eighths = static_cast<int>(std::lround(share * cells * 8));
  if (eighths == 0 && share > 0) eighths = 1;
  std::string out;
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  return out + kEighths[eighths % 8];
}

std::string Style::rule(int cells) const {
  std::string out;
  for (int i = 0; i < cells; ++i) out += options_.unicode ? "─" : "-";
  return out;
}

std::string Style::fit(std::string_view text, int cells, bool keep_end) const {
  const std::string cleaned = clean(text);
  const int have = columns(cleaned), mark = columns(ellipsis());
  if (have <= cells) return cleaned;
  if (cells <= mark)
    return std::string(
        ellipsis().substr(0, options_.unicode ? std::string_view::npos : std::max(cells, 0)));
  const int keep = cells - mark;
  const int skip = keep_end ? have - keep : 0;
  std::string kept;
  int at = -1;
  for (char c : cleaned) {
    if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) ++at;
    if (at >= skip && at < skip + keep) kept += c;
  }
  return keep_end ? fmt::format("{}{}", ellipsis(), kept) : fmt::format("{}{}", kept, ellipsis());
}

std::string Style::left(std::string_view text, int cells) const {
  std::string out = fit(text, cells);
  out.append(std::max(0, cells - columns(out)), ' ');
  return out;
}

std::string Style::right(std::string_view text, int cells) const {
  const std::string out = fit(text, cells);
  return std::string(std::max(0, cells - columns(out)), ' ') + out;
}

std::string short_path(std::string_view path, std::string_view ellipsis) {
  const size_t slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  for (std::string_view root : {"site-packages/", "dist-packages/"}) {
    const size_t at = path.rfind(root);
    if (at == std::string_view::npos) continue;
    const std::string_view inside = path.substr(at + root.size());
    const size_t first = inside.find('/');
    if (first == std::string_view::npos) return std::string(inside);
    const std::string_view package = inside.substr(0, first);
    if (first + 1 + name.size() == inside.size()) return std::string(inside);
    return fmt::format("{}/{}/{}", package, ellipsis, name);
  }
  return std::string(name);
}

std::string Style::place(const analysis::Place& place, bool function) const {
  if (!place.known()) return "";
  std::string out = clean(short_path(place.file, ellipsis()));
  if (place.line > 0) out += fmt::format(":{}", place.line);
  if (function && !place.function.empty() && place.function != "<module>")
    out += " in " + clean(place.function);
  return out;
}

std::string Style::site(const analysis::Site& site, bool function) const {
  // The user's own line first: what is cut off at the end of a line is not that.
  std::string out = place(site.user_line.known() ? site.user_line : site.line, function);
  if (site.user_line.known() && site.line.known() &&
      (site.user_line.file != site.line.file || site.user_line.line != site.line.line))
    out += fmt::format(" ({})", place(site.line, false));
  for (const std::string& part : {site.module, site.op}) {
    if (part.empty()) continue;
    if (!out.empty()) out += dot();
    out += clean(part);
  }
  return out;
}

const char* category_title(analysis::Category category) {
  using Category = analysis::Category;
  switch (category) {
    case Category::kOptimizerState: return "optimizer state";
    case Category::kContext: return "context and code";
    case Category::kOther: return "not PyTorch's";
    default: return analysis::category_name(category);
  }
}

Color category_color(analysis::Category category) {
  using Category = analysis::Category;
  switch (category) {
    case Category::kParameter:
    case Category::kBuffer: return Color::kBlue;
    case Category::kGradient: return Color::kMagenta;
    case Category::kOptimizerState: return Color::kCyan;
    case Category::kActivation: return Color::kGreen;
    case Category::kInput:
    case Category::kWorkspace:
    case Category::kTemporary: return Color::kYellow;
    case Category::kUnknown: return Color::kRed;
    default: return Color::kDim;
  }
}

}  // namespace tonnage::report
