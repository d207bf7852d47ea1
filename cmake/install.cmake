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
