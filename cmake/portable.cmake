# What is built here runs on other machines: with TONNAGE_PORTABLE the tonnage binary needs the C
# library alone, of version 2.31 or newer. The libraries that enter other people's processes are
# always built so (tonnage_guest_library).
#
# tonnage_zstd, ZSTD_STATIC, LZ4_STATIC, ZLIB::ZLIB, LibLZMA::LibLZMA and tonnage_fmt: what
# records, snapshots and machine code are packed with, and text is formatted with.
find_library(ZSTD_STATIC NAMES libzstd.a REQUIRED)
find_library(LZ4_STATIC NAMES liblz4.a REQUIRED)
find_library(LZMA_STATIC NAMES liblzma.a)
find_library(ZLIB_STATIC NAMES libz.a)
set(portable_by_default OFF)
if(LZMA_STATIC AND ZLIB_STATIC AND NOT TONNAGE_SANITIZE AND NOT TONNAGE_COVERAGE)
  set(portable_by_default ON)
endif()
option(TONNAGE_PORTABLE "Link libraries statically and need no newer glibc than 2.31" ${portable_by_default})

add_library(tonnage_zstd INTERFACE)
add_library(tonnage_fmt INTERFACE)
if(TONNAGE_PORTABLE)
  if(NOT LZMA_STATIC OR NOT ZLIB_STATIC)
    message(FATAL_ERROR "TONNAGE_PORTABLE needs the static libraries liblzma.a and libz.a "
      "(Debian: liblzma-dev, zlib1g-dev)")
  endif()
  set(ZLIB_LIBRARY ${ZLIB_STATIC})
  set(LIBLZMA_LIBRARY ${LZMA_STATIC})
  target_link_libraries(tonnage_zstd INTERFACE ${ZSTD_STATIC})
  if(fmt_VERSION VERSION_LESS 10)
    # Compiled once here, because distributions ship it as a shared library only.
    add_library(tonnage_fmt_code STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt_code.cpp)
    target_include_directories(tonnage_fmt_code PUBLIC
      $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(tonnage_fmt INTERFACE tonnage_fmt_code)
  else()
    target_link_libraries(tonnage_fmt INTERFACE fmt::fmt-header-only)
  endif()
else()
  target_link_libraries(tonnage_zstd INTERFACE zstd)
  target_link_libraries(tonnage_fmt INTERFACE fmt::fmt)
endif()
find_package(ZLIB 1.2.11 REQUIRED)
find_package(LibLZMA 5.2 REQUIRED)
