// The parts of the HTML report's page, built in (cmake/report_assets.cmake). Internal to the report
// room.
#pragma once

#include <string_view>

namespace tonnage::report {

std::string_view page_html();  // with {{title}}, {{uplot_css}}, {{colors}}, {{css}}, {{uplot_js}},
                               // {{data}}, {{segments_js}} and
                               // {{js}} to fill in
std::string_view page_css();
std::string_view page_js();
std::string_view segments_js();
std::string_view uplot_js();  // third_party/uplot, MIT licence
std::string_view uplot_css();

}  // namespace tonnage::report
