# tonnage_libtorch: the libtorch that the C++ toolkit is built on. PyTorch's own CMake package
# asks for a whole CUDA toolkit when it is a CUDA build; the toolkit needs none, so a folder with
# include/ and lib/ is enough (TONNAGE_TORCH_ROOT: site-packages/torch or an unpacked libtorch).
# Without one, find_package(Torch) as CMAKE_PREFIX_PATH says.
set(TONNAGE_TORCH_ROOT "" CACHE PATH "The libtorch of the C++ toolkit: a folder with include/torch and lib/libtorch.so")
if(NOT TONNAGE_TORCH_ROOT)
  file(GLOB found_torch ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  foreach(folder ${found_torch})
    if(EXISTS ${folder}/lib/libtorch.so AND EXISTS ${folder}/include/torch/csrc/api/include/torch/torch.h)
      set(TONNAGE_TORCH_ROOT ${folder} CACHE PATH "The libtorch of the C++ toolkit: a folder with include/torch and lib/libtorch.so" FORCE)
    endif()
  endforeach()
endif()
if(NOT TONNAGE_TORCH_ROOT)
  find_package(Torch QUIET)
endif()
if(TONNAGE_TORCH_ROOT OR Torch_FOUND)
  set(torch_default ON)
else()
  set(torch_default OFF)
endif()
option(TONNAGE_TORCH "Build the C++ toolkit for libtorch (toolkit/)" ${torch_default})
if(TONNAGE_TORCH AND NOT torch_default)
  message(FATAL_ERROR "TONNAGE_TORCH is on, but no libtorch was found: give -DTONNAGE_TORCH_ROOT=<folder with lib/libtorch.so>, or "
                      "CMAKE_PREFIX_PATH for PyTorch's own package, or run `make`, which installs one into .venv")
endif()
