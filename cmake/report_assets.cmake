# The page of the HTML report (src/report/assets, and uPlot for its chart), built into
# tonnage_report.
set(report_assets_cpp ${CMAKE_BINARY_DIR}/generated/report/html_assets.cpp)
set(assets ${CMAKE_SOURCE_DIR}/src/report/assets)
set(page_js base model timeline flame segment_map table overview device compare page)
list(TRANSFORM page_js REPLACE "(.+)" "${assets}/\\1.js")
set(report_asset_files ${page_js} ${assets}/report.css ${assets}/segments.js ${assets}/report.html
    ${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.iife.min.js ${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.min.css)
list(JOIN page_js "," page_js)
add_custom_command(
  OUTPUT ${report_assets_cpp}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/embed_files.py ${report_assets_cpp} report/html_assets.h
          tonnage::report page_css=${assets}/report.css page_js=${page_js} segments_js=${assets}/segments.js
          page_html=${assets}/report.html uplot_js=${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.iife.min.js
          uplot_css=${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.min.css
  DEPENDS ${report_asset_files} ${CMAKE_SOURCE_DIR}/tools/embed_files.py
  VERBATIM)
target_sources(tonnage_report PRIVATE ${report_assets_cpp})
