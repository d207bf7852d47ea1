#include "report/text_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tonnage::report {
namespace {

constexpr int kRows = 6;
constexpr int kLabelCells = 10;

// Points spread over the columns: several per column give their maximum, one over several columns
// repeats.
std::vector<uint64_t> spread(const std::vector<uint64_t>& values, int cells) {
  std::vector<uint64_t> out(cells, 0);
  const size_t n = values.size();
  for (int c = 0; c < cells; ++c) {
    const size_t first = n * c / cells;
    const size_t end = std::max(first + 1, n * (c + 1) / cells);
    for (size_t i = first; i < std::min(end, n); ++i) out[c] = std::max(out[c], values[i]);
  }
  return out;
}

}  // namespace

std::string draw_chart(const analysis::DeviceReport& device, const Style& style) {
  const analysis::Series& series = device.series;
  if (series.event.size() < 2) return "";
  const int cells = std::min(style.width() - kLabelCells - 4, 120);
  const auto fill = spread(device.uses_pytorch ? series.allocated : series.device, cells);
  const auto shade = spread(device.uses_pytorch ? series.reserved : series.device, cells);
  const uint64_t top = std::max<uint64_t>(1, *std::max_element(shade.begin(), shade.end()));
  const uint64_t full = std::max(top, *std::max_element(fill.begin(), fill.end()));
  static constexpr const char* kLevels[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string out;
  for (int row = kRows - 1; row >= 0; --row) {
    const std::string label = row == kRows - 1       ? format_bytes(full)
                              : row == kRows / 2 - 1 ? format_bytes(full / 2)
                                                     : "";
    std::string line = "  " + style.right(label, kLabelCells) +
                       (style.unicode() ? (label.empty() ? " │" : " ┤") : " |");
    std::string run;  // cells of one colour
    Color run_color = Color::kNone;
    auto put = [&](std::string_view cell, Color color) {
      if (color != run_color) {
        line += style.paint(run, run_color);
        run.clear();
        run_color = color;
      }
      run += cell;
    };
    for (int c = 0; c < cells; ++c) {
      const double scale = static_cast<double>(kRows) / static_cast<double>(full);
      const double filled = static_cast<double>(fill[c]) * scale - row,
                   shaded = static_cast<double>(shade[c]) * scale - row;
      if (!style.unicode()) {
        put(filled >= 0.5   ? "#"
            : shaded >= 0.5 ? "."
                            : " ",
            filled >= 0.5 ? Color::kGreen : Color::kDim);
      } else if (filled >= 1) {
        put("█", Color::kGreen);
      } else if (filled > 0 && std::lround(filled * 8) > 0) {
        put(kLevels[std::clamp<long>(std::lround(filled * 8), 1, 8)], Color::kGreen);
      } else {
        put(shaded >= 0.5 ? "░" : shaded > 0 && row == 0 ? "▁" : " ", Color::kDim);
      }
    }
    line += style.paint(run, run_color);
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  std::vector<bool> mark(cells, false);
  const size_t n = series.event.size();
  for (uint32_t point : series.step_marks)
    mark[std::min<size_t>(cells - 1, (point + 1) * cells / n)] = true;
  std::string axis = "  " + std::string(kLabelCells, ' ') + (style.unicode() ? " └" : " +");
  for (int c = 0; c < cells; ++c)
    axis += style.unicode() ? (mark[c] ? "┴" : "─") : (mark[c] ? "^" : "-");
  out += axis + "\n";
  std::string legend;
  if (device.uses_pytorch) {
    legend = style.unicode() ? "█ allocated  ░ reserved" : "# allocated  . reserved";
  } else {
    legend = style.unicode() ? "█ device memory" : "# device memory";
  }
  if (!series.step_marks.empty())
    legend += style.unicode() ? "  ┴ end of a step" : "  ^ end of a step";
  legend += "  (in order of events)";
  out += "  " + std::string(kLabelCells + 2, ' ') +
         style.paint(style.fit(legend, style.width() - kLabelCells - 4), Color::kDim) + "\n";
  return out;
}

}  // namespace tonnage::report
