# The page of the HTML report (src/report/assets, and uPlot for its chart), built into tonnage_report.
set(report_assets_cpp ${CMAKE_BINARY_DIR}/generated/report/html_assets.cpp)
set(report_assets page_css=${CMAKE_SOURCE_DIR}/src/report/assets/report.css
                  page_js=${CMAKE_SOURCE_DIR}/src/report/assets/report.js
                  segments_js=${CMAKE_SOURCE_DIR}/src/report/assets/segments.js
                  page_html=${CMAKE_SOURCE_DIR}/src/report/assets/report.html
                  uplot_js=${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.iife.min.js
                  uplot_css=${CMAKE_SOURCE_DIR}/third_party/uplot/uPlot.min.css)
list(TRANSFORM report_assets REPLACE "^[a-z_]+=" "" OUTPUT_VARIABLE report_asset_files)
add_custom_command(
  OUTPUT ${report_assets_cpp}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/embed_files.py ${report_assets_cpp} report/html_assets.h
          tonnage::report ${report_assets}
  DEPENDS ${report_asset_files} ${CMAKE_SOURCE_DIR}/tools/embed_files.py
  VERBATIM)
target_sources(tonnage_report PRIVATE ${report_assets_cpp})
