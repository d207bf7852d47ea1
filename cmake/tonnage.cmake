# tonnage_objects(NAME SOURCES patterns…): an object library tonnage_NAME, compiled once and
# linked both into the libraries that enter other people's processes and into the tonnage binary.
function(tonnage_objects name)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  list(TRANSFORM arg_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${arg_SOURCES})
  add_library(tonnage_${name} OBJECT ${sources})
endfunction()

# tonnage_library(NAME [LINK libraries…] [EXCLUDE names…]): a static library tonnage_NAME of
# src/NAME and its folders.
function(tonnage_library name)
  cmake_parse_arguments(arg "" "" "LINK;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  foreach(excluded ${arg_EXCLUDE})
    list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/src/${name}/${excluded}.cpp)
  endforeach()
  add_library(tonnage_${name} STATIC ${sources})
  target_link_libraries(tonnage_${name} PUBLIC ${arg_LINK})
endfunction()

# tonnage_guest_library(TARGET OUTPUT_NAME FOLDER EXPORTS): a shared library that enters other
# people's processes. It brings its own C++ library (but for sanitizers: they watch the shared
# one) and exports only what EXPORTS names.
function(tonnage_guest_library target output_name folder exports)
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE -Wl,-Bsymbolic -Wl,--exclude-libs,ALL -Wl,-z,defs
    -Wl,--version-script=${exports})
  if(NOT TONNAGE_SANITIZE)
    # Runs with glibc 2.31 too, where threads and dlopen are in libraries of their own.
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src/base/older_glibc.c)
    target_link_options(${target} PRIVATE -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
      -static-libstdc++ -static-libgcc)
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output_name} SOVERSION 1 LINK_DEPENDS ${exports}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/${folder})
  set(destination ${CMAKE_INSTALL_LIBDIR}/tonnage/${folder})
  if(NOT SKBUILD)
    install(TARGETS ${target} LIBRARY DESTINATION ${destination})
    return()
  endif()
  # A wheel holds no links. A copy under the short name (libcuda.so) would be a second driver in
  # a process that asks for both names, so it is an empty library that needs the real one.
  install(TARGETS ${target} LIBRARY DESTINATION ${destination} NAMELINK_SKIP)
  set(empty ${CMAKE_BINARY_DIR}/generated/${target}_short_name.c)
  file(GENERATE OUTPUT ${empty} CONTENT "")
  add_library(${target}_short_name SHARED ${empty})
  target_link_libraries(${target}_short_name PRIVATE ${target})
  target_link_options(${target}_short_name PRIVATE -nostdlib -Wl,--no-as-needed)
  set_target_properties(${target}_short_name PROPERTIES OUTPUT_NAME ${output_name} INSTALL_RPATH $ORIGIN
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/short_names/${folder})
  install(TARGETS ${target}_short_name LIBRARY DESTINATION ${destination})
endfunction()
