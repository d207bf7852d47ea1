# tonnage_zstd, tonnage_lz4, ZLIB::ZLIB, LibLZMA::LibLZMA and tonnage_fmt: what records, snapshots and machine code are packed with, and
# text is formatted with. The libraries that enter other people's processes always link zstd and lz4 statically. With TONNAGE_PORTABLE
# the tonnage binary does so with all of them.
find_library(ZSTD_STATIC NAMES libzstd.a REQUIRED)
find_library(LZ4_STATIC NAMES liblz4.a REQUIRED)
add_library(tonnage_zstd INTERFACE)
add_library(tonnage_fmt INTERFACE)
if(TONNAGE_PORTABLE)
  set(ZLIB_USE_STATIC_LIBS ON)  # read by CMake 3.24 and later
  find_library(LIBLZMA_LIBRARY NAMES liblzma.a REQUIRED)
  target_link_libraries(tonnage_zstd INTERFACE ${ZSTD_STATIC})
  add_library(tonnage_fmt_code STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt_code.cpp)
  target_include_directories(tonnage_fmt_code PUBLIC $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(tonnage_fmt INTERFACE tonnage_fmt_code)
else()
  target_link_libraries(tonnage_zstd INTERFACE zstd)
  target_link_libraries(tonnage_fmt INTERFACE fmt::fmt)
endif()
find_package(ZLIB 1.2.11 REQUIRED)
find_package(LibLZMA 5.2 REQUIRED)
