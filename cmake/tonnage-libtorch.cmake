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

# tonnage_torch_split(MEMORY REST SOURCES…): the toolkit's sources in two groups: what looks at and saves memory, which needs nothing of
# the rest, and the rest (models, optimizers, data). A group is compiled as one: the time goes into libtorch's headers.
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

# tonnage_torch_library(NAME INCLUDE SOURCE_FOLDER SOURCES…): one group as a static library on tonnage_libtorch.
function(tonnage_torch_library name include source_folder)
  add_library(${name} STATIC ${ARGN})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC ${include} PRIVATE ${source_folder})
  target_link_libraries(${name} PUBLIC tonnage_libtorch Threads::Threads ${CMAKE_DL_LIBS})
  # RecordFunction has another layout without NDEBUG than in the libtorch that was released.
  target_compile_definitions(${name} PRIVATE NDEBUG)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endfunction()
