# What `cmake --install` puts where (src/cli/install_paths.cpp looks there): the binary, the virtual libraries beside it, and what
# the recorder for a user's own PyTorch is compiled from. The virtual libraries install themselves.
set(share ${CMAKE_INSTALL_DATADIR}/tonnage)
install(TARGETS tonnage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY python/tonnage DESTINATION ${share}/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY data/ DESTINATION ${share}/data)
install(DIRECTORY src/recorder src/abi DESTINATION ${share}/recorder_src
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp" PATTERN "cuda_names/*")
install(DIRECTORY toolkit/include/tonnage DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
# Recorders that were built ahead (make), if there are any.
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/recorder DESTINATION ${CMAKE_INSTALL_LIBDIR}/tonnage OPTIONAL FILES_MATCHING PATTERN "*.so")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The C++ toolkit for find_package(Tonnage): its sources, which are compiled for the libtorch of the project that uses it.
include(CMakePackageConfigHelpers)
set(TONNAGE_TORCH_SOURCES ${share}/toolkit_src)
install(DIRECTORY toolkit/src/ DESTINATION ${TONNAGE_TORCH_SOURCES} FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp")
install(DIRECTORY src/recorder/cuda_names DESTINATION ${TONNAGE_TORCH_SOURCES})
configure_package_config_file(toolkit/cmake/TonnageConfig.cmake.in ${CMAKE_BINARY_DIR}/TonnageConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tonnage PATH_VARS CMAKE_INSTALL_INCLUDEDIR TONNAGE_TORCH_SOURCES)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TonnageConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TonnageConfig.cmake ${CMAKE_BINARY_DIR}/TonnageConfigVersion.cmake toolkit/cmake/tonnage-libtorch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tonnage)
