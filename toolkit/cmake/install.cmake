# The package for find_package(Tonnage): headers, and sources that are compiled for the libtorch
# of the project that uses them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TONNAGE_TORCH_SOURCES ${CMAKE_INSTALL_DATADIR}/tonnage/toolkit_src)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tonnage)
install(DIRECTORY include/tonnage DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY src/ cuda_names DESTINATION ${TONNAGE_TORCH_SOURCES} FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp")
configure_package_config_file(cmake/TonnageConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/TonnageConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR TONNAGE_TORCH_SOURCES)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/TonnageConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TonnageConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TonnageConfigVersion.cmake
              cmake/tonnage-libtorch.cmake DESTINATION ${package})
