// Arrays and mipmapped arrays (array.cpp), for the code that binds or copies them.
#pragma once

#include <memory>
#include <vector>

#include "driver/graphs/graph.h"
#include "driver/state.h"

namespace tonnage::driver {

struct MipmappedArray;

struct Array {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  Device* device = nullptr;
  uint64_t address = 0;  // 0: sparse or mapped later
  const MipmappedArray* level_of = nullptr;
};

struct MipmappedArray {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  uint64_t address = 0, bytes = 0;
  std::vector<CUarray> levels;
  std::vector<std::unique_ptr<Array>> owned;  // only while it is being made
};

// Bytes of one element; 0 for formats that are not stored element by element.
unsigned element_bytes(CUarray_format format, unsigned channels);
bool find_array(CUarray handle, Array* out);  // false: not an array
bool is_mipmapped_array(CUmipmappedArray handle);

// Where the elements of an array are kept. False: not an array.
struct ArrayPlace {
  uint64_t address = 0;  // of element (0, 0, 0), device memory
  uint64_t row_bytes = 0;
  uint64_t rows = 1;  // per slice
  uint64_t slices = 1;
};
bool array_place(CUarray array, ArrayPlace* out);

}  // namespace tonnage::driver
