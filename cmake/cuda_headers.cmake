# TONNAGE_CUDA_INCLUDE where it was not given: the headers that come with PyTorch's packages, in
# this tree's .venv or in the Python that CMake found (which is pip's own build environment under
# `pip install .`).
if(NOT TONNAGE_CUDA_INCLUDE)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/include)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import nvidia; print(';'.join(p + '/cu13/include' for p in nvidia.__path__))"
    OUTPUT_VARIABLE from_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(folder ${from_python} ${candidates})
    if(EXISTS ${folder}/cuda.h AND EXISTS ${folder}/nvml.h)
      set(TONNAGE_CUDA_INCLUDE ${folder} CACHE PATH "Folder with cuda.h and nvml.h" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS ${TONNAGE_CUDA_INCLUDE}/cuda.h)
  message(FATAL_ERROR "cuda.h was not found. It comes with PyTorch's packages: run `make`, which installs them into .venv, "
                      "or give -DTONNAGE_CUDA_INCLUDE=<site-packages>/nvidia/cu13/include")
endif()
