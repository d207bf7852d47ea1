// Arrays: what they take from the card, and that copies through them keep what is known.
#include <string.h>

#include <vector>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

class ArrayTest : public DriverTest {
 protected:
  CUarray create(size_t width, size_t height, CUarray_format format, unsigned channels) {
    const CUDA_ARRAY_DESCRIPTOR descriptor = {width, height, format, channels};
    CUarray array = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuArrayCreate_v2)(&array, &descriptor));
    return array;
  }
};

// The sequence and what each array took of an H200 (driver 580; tools/device, section memory), in
// MiB.
TEST_F(ArrayTest, TakesWhatAnH200Takes) {
  const CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16,
                                    CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT8,
                                    CU_AD_FORMAT_SIGNED_INT16,   CU_AD_FORMAT_SIGNED_INT32,
                                    CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
  const std::vector<uint64_t> expected = {
      2, 0, 0, 2, 2, 0, 0, 4,  2, 0, 0, 8,  0, 0, 0, 4, 0, 0, 0, 8,  2, 0, 0, 16,
      0, 0, 0, 8, 0, 0, 2, 16, 2, 0, 2, 32, 0, 0, 0, 2, 0, 0, 0, 4,  0, 0, 2, 8,
      0, 0, 0, 4, 0, 0, 0, 8,  0, 0, 0, 16, 0, 0, 0, 8, 0, 0, 2, 16, 0, 0, 2, 32,
      0, 0, 0, 4, 0, 0, 0, 8,  0, 0, 0, 16, 0, 0, 2, 8, 0, 0, 2, 16, 0, 0, 2, 32};
  const uint64_t before = used();
  std::vector<CUarray> arrays;
  size_t at = 0;
  for (const CUarray_format format : formats) {
    for (const unsigned channels : {1u, 2u, 4u}) {
      for (const size_t height : {0, 1, 100, 2000}) {
        const uint64_t now = used();
        arrays.push_back(create(1000, height, format, channels));
        ASSERT_LT(at, expected.size());
        EXPECT_EQ(expected[at] * kMiB, used() - now)
            << "format " << format << " channels " << channels << " height " << height;
        at++;
      }
    }
  }
  for (CUarray array : arrays) CU_OK(CU(cuArrayDestroy)(array));
  EXPECT_EQ(before, used());
  CU_FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuArrayDestroy)(arrays[0]));
}

TEST_F(ArrayTest, WhatIsCopiedInComesOut) {
  const CUarray array = create(5, 3, CU_AD_FORMAT_UNSIGNED_INT32, 1);
  uint32_t source[3][8], target[3][5] = {};
  for (int y = 0; y < 3; y++)
    for (int x = 0; x < 8; x++) source[y][x] = static_cast<uint32_t>(100 * y + x);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = source;
  copy.srcPitch = sizeof source[0];
  copy.srcXInBytes = 8;  // from column 2
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 20;
  copy.Height = 3;
  CU_OK(CU(cuMemcpy2D_v2)(&copy));
  copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = target;
  copy.dstPitch = sizeof target[0];
  copy.WidthInBytes = 20;
  copy.Height = 3;
  CU_OK(CU(cuMemcpy2D_v2)(&copy));
  EXPECT_EQ(2u, target[0][0]);
  EXPECT_EQ(206u, target[2][4]);
  uint32_t word = 0;
  CU_OK(CU(cuMemcpyAtoH_v2)(&word, array, 4, 4));
  EXPECT_EQ(3u, word);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemcpyAtoH_v2)(&word, array, 18, 4));  // past the first row
  CU_OK(CU(cuArrayDestroy)(array));
}

TEST_F(ArrayTest, DescriptionsAreChecked) {
  CUarray array = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 4, CU_AD_FORMAT_FLOAT, 3, 0};
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuArray3DCreate_v2)(&array, &d));  // three channels
  d.NumChannels = 2;
  d.Flags = CUDA_ARRAY3D_CUBEMAP;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuArray3DCreate_v2)(&array, &d));  // a cube has six faces
  d.Depth = 6;
  CU_OK(CU(cuArray3DCreate_v2)(&array, &d));
  CUDA_ARRAY3D_DESCRIPTOR got = {};
  CU_OK(CU(cuArray3DGetDescriptor_v2)(&got, array));
  EXPECT_EQ(0, memcmp(&d, &got, sizeof d));
  CU_OK(CU(cuArrayDestroy)(array));
  CU_FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuArray3DGetDescriptor_v2)(&got, array));
}

TEST_F(ArrayTest, MipmappedArraysHaveTheirLevels) {
  const uint64_t before = used();
  const CUDA_ARRAY3D_DESCRIPTOR d = {1024, 512, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray mipmapped = nullptr;
  CU_OK(CU(cuMipmappedArrayCreate)(&mipmapped, &d, 3));
  EXPECT_GE(used() - before, (1024 * 512 + 512 * 256 + 256 * 128) * 16u);
  CUarray level = nullptr;
  CU_OK(CU(cuMipmappedArrayGetLevel)(&level, mipmapped, 2));
  CUDA_ARRAY_DESCRIPTOR got = {};
  CU_OK(CU(cuArrayGetDescriptor_v2)(&got, level));
  EXPECT_EQ(256u, got.Width);
  EXPECT_EQ(128u, got.Height);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMipmappedArrayGetLevel)(&level, mipmapped, 3));
  CU_FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuArrayDestroy)(level));
  CU_OK(CU(cuMipmappedArrayDestroy)(mipmapped));
  EXPECT_EQ(before, used());
}

TEST_F(ArrayTest, TextureObjectsKeepTheirDescription) {
  const CUarray array = create(16, 16, CU_AD_FORMAT_FLOAT, 1);
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC texture = {};
  texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
  CUtexObject object = 0;
  CU_OK(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr));
  CUDA_TEXTURE_DESC got = {};
  CU_OK(CU(cuTexObjectGetTextureDesc)(&got, object));
  EXPECT_EQ(CU_TR_FILTER_MODE_LINEAR, got.filterMode);
  CU_OK(CU(cuTexObjectDestroy)(object));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuTexObjectGetTextureDesc)(&got, object));
  CUsurfObject surface = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuSurfObjectCreate)(&surface, &resource));  // not made for surfaces
  CU_OK(CU(cuArrayDestroy)(array));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr));
}

}  // namespace
}  // namespace tonnage::driver::test
