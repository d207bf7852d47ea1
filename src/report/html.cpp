#include "report/html.h"

#include <array>
#include <string_view>
#include <utility>

#include "report/html_assets.h"

namespace tonnage::report {
namespace {

std::string escape_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

// The categories' colours as custom properties of CSS, from the one list of categories.
std::string category_colors() {
  std::string white, black;
  for (const abi::CategoryInfo& info : abi::kCategories) {
    white += std::string(" --") + info.name + ": " + info.color_on_white + ";";
    black += std::string(" --") + info.name + ": " + info.color_on_black + ";";
  }
  return ":root {" + white + " }\n@media (prefers-color-scheme: dark) { :root {" + black + " } }";
}

}  // namespace

std::string escape_for_script(const std::string& json) {
  std::string out;
  out.reserve(json.size() + json.size() / 16);
  for (size_t i = 0; i < json.size(); ++i) {
    switch (json[i]) {
      case '<': out += "\\u003c"; continue;
      case '>': out += "\\u003e"; continue;
      case '&': out += "\\u0026"; continue;
      case '\xe2':  // U+2028 and U+2029 end a line in old JavaScript
        if (json.compare(i, 3, "\xe2\x80\xa8") == 0 || json.compare(i, 3, "\xe2\x80\xa9") == 0) {
          out += json[i + 2] == '\xa8' ? "\\u2028" : "\\u2029";
          i += 2;
          continue;
        }
        break;
      default: break;
    }
    out += json[i];
  }
  return out;
}

std::string render_html(const std::vector<analysis::Explanation>& explanations,
                        const HtmlLimits& limits, const analysis::Diff* diff) {
  std::string name = explanations.size() == 1 ? explanations[0].source : "";
  if (const size_t slash = name.rfind('/'); slash != std::string::npos)
    name = name.substr(slash + 1);
  const std::string title = diff                          ? "Difference – Tonnage"
                            : name.empty() || name == "-" ? "Tonnage"
                                                          : escape_text(name) + " – Tonnage";
  const std::string colors = category_colors();
  const std::string data = escape_for_script(html_data(explanations, limits, diff));
  const std::array<std::pair<std::string_view, std::string_view>, 8> parts = {
      {{"{{title}}", title},
       {"{{uplot_css}}", uplot_css()},
       {"{{colors}}", colors},
       {"{{css}}", page_css()},
       {"{{uplot_js}}", uplot_js()},
       {"{{data}}", data},
       {"{{segments_js}}", segments_js()},
       {"{{js}}", page_js()}}};
  // One pass over the page alone: what is filled in is never searched for places to fill.
  std::string out;
  std::string_view rest = page_html();
  for (const auto& [mark, text] : parts) {
    const size_t at = rest.find(mark);
    out += rest.substr(0, at);
    out += text;
    rest.remove_prefix(at + mark.size());
  }
  out += rest;
  return out;
}

}  // namespace tonnage::report
