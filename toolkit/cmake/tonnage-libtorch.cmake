# tonnage_check_libtorch(PROBLEM ROOT): why the toolkit cannot be compiled for the libtorch in
# ROOT, or for find_package(Torch)'s when ROOT is empty; nothing if it can. What differs between
# the releases that it knows is in toolkit/src/compat.h.
function(tonnage_check_libtorch problem root)
  set(${problem} "" PARENT_SCOPE)
  if(root AND NOT EXISTS ${root}/lib/libtorch.so)
    set(${problem} "${root} has no lib/libtorch.so" PARENT_SCOPE)
    return()
  endif()
  set(version "${Torch_VERSION}")
  set(place "${TORCH_INSTALL_PREFIX}")
  if(root)
    set(place "${root}")
    set(header include/torch/csrc/api/include/torch/version.h)
    if(NOT EXISTS ${root}/${header})
      set(${problem} "${root} has no ${header}" PARENT_SCOPE)
      return()
    endif()
    if(EXISTS ${root}/include/torch/headeronly/version.h)  # since 2.10 the numbers are here
      set(header include/torch/headeronly/version.h)
    endif()
    file(STRINGS ${root}/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
    string(REPLACE ";" "." version "${version}")
  endif()
  if(NOT version VERSION_GREATER_EQUAL 2.6)
    set(${problem} "libtorch ${version} in ${place} is too old for the toolkit: 2.6 is the first that it can be compiled for" PARENT_SCOPE)
  endif()
endfunction()

# tonnage_make_libtorch(NAME ROOT CUDA_INCLUDE): an interface target for the libtorch in ROOT, or
# for find_package(Torch)'s when ROOT is empty. Used by this tree and by the installed package,
# which compiles the toolkit for the user's own libtorch: its C++ interface is not stable between
# releases.
function(tonnage_make_libtorch name root cuda_include)
  add_library(${name} INTERFACE)
  if(NOT root)
    target_link_libraries(${name} INTERFACE ${TORCH_LIBRARIES})
    target_compile_options(${name} INTERFACE ${TORCH_CXX_FLAGS})
    return()
  endif()
  target_include_directories(${name} SYSTEM INTERFACE ${root}/include ${root}/include/torch/csrc/api/include)
  if(cuda_include AND EXISTS ${cuda_include}/cuda.h)
    target_include_directories(${name} SYSTEM INTERFACE ${cuda_include})
  endif()
  # PyTorch's packages for Linux up to 2.6 have libstdc++'s strings of before GCC 5; its own
  # CMake package says so.
  if(EXISTS ${root}/share/cmake/Torch/TorchConfig.cmake)
    file(STRINGS ${root}/share/cmake/Torch/TorchConfig.cmake old_strings REGEX "_GLIBCXX_USE_CXX11_ABI=0")
    if(old_strings)
      target_compile_definitions(${name} INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
    endif()
  endif()
  target_link_directories(${name} INTERFACE ${root}/lib)
  if(EXISTS ${root}/lib/libtorch_cuda.so)
    # The CUDA half registers itself when it is loaded: it must be linked although no symbol
    # of it is named.
    target_link_libraries(${name} INTERFACE -Wl,--no-as-needed torch torch_cuda c10_cuda -Wl,--as-needed)
  else()
    target_link_libraries(${name} INTERFACE torch)
  endif()
  target_link_libraries(${name} INTERFACE torch_cpu c10 -Wl,-rpath,${root}/lib)
  # libtorch.so's own needs (CUDA's libraries in other packages) are found by its run path, not
  # by the linker.
  target_link_options(${name} INTERFACE -Wl,--allow-shlib-undefined)
endfunction()

# tonnage_torch_split(MEMORY REST SOURCES…): the toolkit's sources in two groups: what looks at
# and saves memory, which needs nothing of the rest, and the rest (models, optimizers, data). A
# group is compiled as one: the time goes into libtorch's headers.
function(tonnage_torch_split memory rest)
  set(memory_names recorder optimizer_states saved_tensor_hooks ambient_state checkpoint device_allocator memory chain_plan chain_run memory_trace
      memory_tables leak_detector device_check graph_dot offload compress precision grad_scaler batch housekeeping)
  set(in_memory "")
  set(in_rest "")
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    if(name IN_LIST memory_names)
      list(APPEND in_memory ${source})
    else()
      list(APPEND in_rest ${source})
    endif()
  endforeach()
  set(${memory} ${in_memory} PARENT_SCOPE)
  set(${rest} ${in_rest} PARENT_SCOPE)
endfunction()

# tonnage_torch_library(NAME INCLUDE SOURCE_FOLDER CUDA_NAMES SOURCES…): one group as a static
# library on tonnage_libtorch. CUDA_NAMES stands in for CUDA's headers where libtorch comes
# without them.
function(tonnage_torch_library name include source_folder cuda_names)
  add_library(${name} STATIC ${ARGN})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC ${include} PRIVATE ${source_folder})
  target_include_directories(${name} SYSTEM PRIVATE ${cuda_names})
  target_link_libraries(${name} PUBLIC tonnage_libtorch Threads::Threads ${CMAKE_DL_LIBS})
  # RecordFunction has another layout without NDEBUG than in the libtorch that was released.
  target_compile_definitions(${name} PRIVATE NDEBUG)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endfunction()
