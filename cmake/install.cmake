# What `cmake --install` puts where (src/cli/install_paths.cpp looks there): the binary, the
# virtual libraries beside it, and what the recorder for a user's own PyTorch is compiled from
# (with toolkit/cuda_names). The virtual libraries and the toolkit install themselves.
set(share ${CMAKE_INSTALL_DATADIR}/tonnage)
install(TARGETS tonnage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY python/tonnage DESTINATION ${share}/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY data/ DESTINATION ${share}/data)
install(DIRECTORY src/recorder src/abi DESTINATION ${share}/recorder_src
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp" PATTERN "*.def")
install(FILES src/base/older_glibc.c src/base/older_libstdcxx.S
  DESTINATION ${share}/recorder_src/base)
# Recorders that were built ahead (make), if there are any.
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/recorder DESTINATION ${CMAKE_INSTALL_LIBDIR}/tonnage
  OPTIONAL FILES_MATCHING PATTERN "*.so")
install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Licences of what is compiled in: uPlot always, the rest where it is linked statically.
install(FILES third_party/NOTICE.md third_party/uplot/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/third_party)
if(TONNAGE_PORTABLE)
  foreach(package libfmt-dev libcli11-dev nlohmann-json3-dev libzstd-dev liblz4-dev zlib1g-dev
      liblzma-dev libstdc++-12-dev)
    if(EXISTS /usr/share/doc/${package}/copyright)
      install(FILES /usr/share/doc/${package}/copyright
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/third_party/licences RENAME ${package})
    endif()
  endforeach()
endif()
