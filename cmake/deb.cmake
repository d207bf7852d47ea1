# `make deb`: a Debian package by CPack, of what cmake/install.cmake installs.
if(NOT TONNAGE_PORTABLE)
  return()  # its dependencies below would not be true
endif()
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # `make` has built what is packed; tests and examples are not
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tonnage)
set(CPACK_PACKAGE_CONTACT "Tonnage's maintainers <maintainers@tonnage.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPU memory of neural-network training, without a GPU")
set(CPACK_PACKAGE_DESCRIPTION "Runs unmodified CUDA programs on a virtual GPU and reports what their memory does, to the byte.
 PyTorch and the CUDA libraries are those of the user's own environment.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.31)")
# The recorder for a PyTorch that none was shipped for is compiled on the user's machine.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++ (>= 4:10), python3")
include(CPack)
