# tonnage_make_libtorch(NAME ROOT CUDA_INCLUDE): an interface target for the libtorch in ROOT, or for find_package(Torch)'s when ROOT is
# empty. Used by this tree and by the installed package, which compiles the toolkit for the user's own libtorch: its C++ interface is
# not stable between releases.
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
  target_link_directories(${name} INTERFACE ${root}/lib)
  if(EXISTS ${root}/lib/libtorch_cuda.so)
    # The CUDA half registers itself when it is loaded: it must be linked although no symbol of it is named.
    target_link_libraries(${name} INTERFACE -Wl,--no-as-needed torch torch_cuda c10_cuda -Wl,--as-needed)
  else()
    target_link_libraries(${name} INTERFACE torch)
  endif()
  target_link_libraries(${name} INTERFACE torch_cpu c10 -Wl,-rpath,${root}/lib)
  # libtorch.so's own needs (CUDA's libraries in other packages) are found by its run path, not by the linker.
  target_link_options(${name} INTERFACE -Wl,--allow-shlib-undefined)
endfunction()

# tonnage_torch_groups(TARGET): compiles the toolkit's sources in two groups: what looks at and saves memory, and the rest (models,
# optimizers, data). Two cores take about as long for both.
function(tonnage_torch_groups target)
  set(memory_sources recorder optimizer_states saved_tensor_hooks ambient_state checkpoint device_allocator memory chain_plan chain_run memory_trace
      memory_tables leak_detector device_check graph_dot offload compress precision grad_scaler batch housekeeping)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    if(name IN_LIST memory_sources)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP memory)
    else()
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP models)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
