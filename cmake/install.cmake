# What `cmake --install` puts where (src/cli/install_paths.cpp looks there): the binary, the virtual libraries beside it, and what
# the recorder for a user's own PyTorch is compiled from (with toolkit/cuda_names). The virtual libraries and the toolkit install
# themselves.
set(share ${CMAKE_INSTALL_DATADIR}/tonnage)
install(TARGETS tonnage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY python/tonnage DESTINATION ${share}/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY data/ DESTINATION ${share}/data)
install(DIRECTORY src/recorder src/abi DESTINATION ${share}/recorder_src
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp" PATTERN "*.def")
# Recorders that were built ahead (make), if there are any.
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/recorder DESTINATION ${CMAKE_INSTALL_LIBDIR}/tonnage OPTIONAL FILES_MATCHING PATTERN "*.so")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
