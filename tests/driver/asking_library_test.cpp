#include "driver/asking_library.h"

#include <gtest/gtest.h>

namespace tonnage::driver {
namespace {

TEST(AskingLibrary, IsNamedByItsFile) {
  const std::string site = "/venv/lib/python3.11/site-packages/";
  EXPECT_EQ("cublas", library_name(site + "nvidia/cublas/lib/libcublasLt.so.12"));
  EXPECT_EQ("cudnn", library_name(site + "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9"));
  EXPECT_EQ("nccl", library_name("/usr/lib/libnccl.so.2.21.5"));
  EXPECT_EQ("pytorch", library_name(site + "torch/lib/libc10_cuda.so"));
  EXPECT_EQ("cupy", library_name(site + "cupy_backends/cuda/api/runtime.cpython-311-x86_64.so"));
  EXPECT_EQ("cupy", library_name(site + "cupy/cuda/memory.cpython-311-x86_64-linux-gnu.so"));
  EXPECT_EQ("rmm", library_name(site + "librmm/lib64/librmm.so"));
  EXPECT_EQ("mysolver", library_name("/opt/lib/libmysolver.so.4"));
  EXPECT_EQ("program", library_name("/home/me/stencil"));
  EXPECT_EQ("program", library_name("stencil"));
  EXPECT_EQ("program", library_name("/usr/bin/python3.11"));
  EXPECT_EQ("program", library_name("/usr/lib/libpython3.11.so.1.0"));
}

TEST(AskingLibrary, WhatPassesRequestsOnDoesNotAsk) {
  for (const char* path : {"/x/libcudart.so.12", "/x/libcuda.so.1", "/x/libffi.so.8",
                           "/x/_ctypes.cpython-311-x86_64-linux-gnu.so", "/lib/libc.so.6"})
    EXPECT_EQ("", library_name(path)) << path;
}

TEST(AskingLibrary, HereItIsTheProgram) { EXPECT_EQ("program", asking_library()); }

}  // namespace
}  // namespace tonnage::driver
