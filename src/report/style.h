// How the text report writes things: bytes, places, colours, bars, and characters that any terminal
// can show.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "analysis/report.h"
#include "report/text.h"

namespace tonnage::report {

enum class Color { kNone, kBold, kDim, kRed, kGreen, kYellow, kBlue, kMagenta, kCyan };

class Style {
 public:
  explicit Style(const TextOptions& options) : options_(options) {}
  int width() const { return options_.width < 80 ? 80 : options_.width; }
  bool unicode() const { return options_.unicode; }
  std::string paint(std::string_view text, Color color) const;
  // A bar of `share` (0..1) of `cells`, in eighths of a cell with Unicode.
  std::string bar(double share, int cells) const;
  std::string_view times() const { return options_.unicode ? "×" : "x"; }
  std::string_view ellipsis() const { return options_.unicode ? "…" : "..."; }
  std::string_view dot() const { return options_.unicode ? " · " : ", "; }
  std::string rule(int cells) const;
  // At most `cells` columns wide: the end (or the start) is cut and an ellipsis put there.
  std::string fit(std::string_view text, int cells, bool keep_end = false) const;
  std::string left(std::string_view text, int cells) const;   // padded on the right
  std::string right(std::string_view text, int cells) const;  // padded on the left
  // "blocks.py:63 in forward"; "" if no line is known. site: the user's own line, and behind it in
  // brackets the innermost line if that is a package's: "train.py:46
  // (transformers/…/loss_utils.py:40)".
  std::string place(const analysis::Place& place, bool function = true) const;
  // The same with module and operator behind it.
  std::string site(const analysis::Site& site, bool function = false) const;

 private:
  // Text from outside (file names, messages): control characters and what is not UTF-8 become '?',
  // in ASCII all that is not ASCII.
  std::string clean(std::string_view text) const;
  TextOptions options_;

 public:
  std::string safe(std::string_view text) const { return clean(text); }
};

// Columns that UTF-8 text takes (one per code point; colour codes must not be in it).
int columns(std::string_view text);

// The file's name; in an installed package with the package before it: "torchvision/…/resnet.py".
std::string short_path(std::string_view path, std::string_view ellipsis);

const char* category_title(analysis::Category category);  // "optimizer state"
Color category_color(analysis::Category category);

}  // namespace tonnage::report
