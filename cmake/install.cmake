# What `cmake --install` puts where (src/cli/install_paths.cpp looks there): the binary, the virtual libraries beside it, and what
# the recorder for a user's own PyTorch is compiled from. vgpu_cuda installs itself.
set(share ${CMAKE_INSTALL_DATADIR}/tonnage)
if(TARGET tonnage)
  install(TARGETS tonnage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY python/tonnage DESTINATION ${share}/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY data/ DESTINATION ${share}/data OPTIONAL)
install(DIRECTORY src/shim_torch src/record src/base DESTINATION ${share}/shim_src
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp" PATTERN "cuda_names/*")
install(FILES src/vgpu/bridge.h src/vgpu/session.h DESTINATION ${share}/shim_src/vgpu)
install(DIRECTORY include/tonnage DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} OPTIONAL FILES_MATCHING PATTERN "*.h")
# Recorders that were built ahead (make), if there are any.
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/shim DESTINATION ${CMAKE_INSTALL_LIBDIR}/tonnage OPTIONAL FILES_MATCHING PATTERN "*.so")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(FILES docs/tonnage.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
# The C++ toolkit for find_package(Tonnage): its sources, which are compiled for the libtorch of the project that uses it.
include(CMakePackageConfigHelpers)
set(TONNAGE_TORCH_SOURCES ${share}/toolkit_src)
install(DIRECTORY src/torch DESTINATION ${TONNAGE_TORCH_SOURCES} FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp")
install(DIRECTORY src/shim_torch/cuda_names DESTINATION ${TONNAGE_TORCH_SOURCES}/shim_torch)
configure_package_config_file(cmake/TonnageConfig.cmake.in ${CMAKE_BINARY_DIR}/TonnageConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tonnage PATH_VARS CMAKE_INSTALL_INCLUDEDIR TONNAGE_TORCH_SOURCES)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TonnageConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TonnageConfig.cmake ${CMAKE_BINARY_DIR}/TonnageConfigVersion.cmake cmake/tonnage-libtorch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tonnage)
