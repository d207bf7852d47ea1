// Every answer here was given by a real H200; the files in tests/data/h200 say how they were asked.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cards/occupancy.h"
#include "image/resident.h"

namespace tonnage::cards {
namespace {

std::vector<std::string> data_lines(const std::string& name) {
  const std::string path = std::string(TONNAGE_SOURCE_DIR) + "/tests/data/" + name;
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  EXPECT_FALSE(lines.empty()) << path;
  return lines;
}

std::vector<long> numbers(std::istringstream& in) {
  std::vector<long> out;
  for (long value; in >> value;) out.push_back(value);
  return out;
}

abi::CardDesc h200() {
  abi::CardDesc card;
  std::memset(&card, 0, sizeof card);
  card.cc_major = 9;
  for (const std::string& line : data_lines("h200-attributes.txt")) {
    std::istringstream in(line);
    const std::vector<long> pair = numbers(in);
    if (pair.size() == 2 && pair[0] >= 0 && pair[0] < abi::kAttributeCount)
      card.attributes[pair[0]] = static_cast<int32_t>(pair[1]);
  }
  card.register_allocation_unit = 256;
  card.warp_allocation_granularity = 4;
  card.shared_allocation_unit = 128;
  const int clusters[] = {0, 132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7, 2, 2};
  std::copy(std::begin(clusters), std::end(clusters), card.max_clusters);
  return card;
}

size_t shared_per_thread(int block) { return static_cast<size_t>(block) * 64; }

image::KernelInfo kernel_of(const std::vector<long>& fields) {
  image::KernelInfo kernel;
  kernel.registers = static_cast<int32_t>(fields[1]);
  kernel.static_shared_bytes = static_cast<uint32_t>(fields[2]);
  kernel.barriers = static_cast<int32_t>(fields[3]);
  kernel.max_threads = static_cast<int32_t>(fields[4]);
  kernel.local_bytes = static_cast<uint32_t>(fields[5]);
  kernel.const_bytes = static_cast<uint32_t>(fields[6]);
  kernel.explicit_cluster = fields[7] != 0;
  for (size_t i = 0; i < 3; ++i) kernel.required_cluster[i] = static_cast<int32_t>(fields[8 + i]);
  kernel.ptx_version = kernel.binary_version = 90;
  return kernel;
}

TEST(OccupancyH200, WhatLibrariesAsked) {
  const abi::CardDesc card = h200();
  int rows = 0;
  for (const std::string& line : data_lines("h200/occupancy.txt")) {
    std::istringstream in(line);
    const std::vector<long> f = numbers(in);
    ASSERT_EQ(f.size(), 8u) << line;
    image::KernelInfo kernel;
    kernel.registers = static_cast<int32_t>(f[0]);
    kernel.static_shared_bytes = static_cast<uint32_t>(f[1]);
    kernel.barriers = static_cast<int32_t>(f[2]);
    KernelSettings settings;
    settings.max_dynamic_shared_bytes = static_cast<int32_t>(f[3]);
    int blocks = -1;
    EXPECT_EQ(max_active_blocks(card, resolve(kernel, settings, card), static_cast<int>(f[4]),
                                static_cast<size_t>(f[5]), &blocks),
              0);
    EXPECT_EQ(blocks, f[7]) << line;
    ++rows;
  }
  EXPECT_EQ(rows, 71);
}

// The tool that cuBLAS and cuDNN use to find out what a card is: an empty kernel with all shared
// memory.
TEST(OccupancyH200, ClusterDiscovery) {
  const abi::CardDesc card = h200();
  image::KernelInfo nop;
  nop.registers = 4;
  KernelSettings settings;
  settings.max_dynamic_shared_bytes = 232448;
  settings.non_portable_cluster = 1;
  const KernelAttributes kernel = resolve(nop, settings, card);
  size_t available = 0;
  EXPECT_EQ(available_dynamic_shared(card, kernel, 1, 1, &available), 0);
  EXPECT_EQ(available, 232448u);
  for (unsigned size = 1; size <= 32; ++size) {
    ClusterLaunch launch;
    launch.block[0] = 128;
    launch.grid[0] = launch.cluster[0] = size;
    launch.dynamic_shared_bytes = 232448;
    int clusters = -1;
    EXPECT_EQ(max_active_clusters(card, kernel, launch, &clusters), 0);
    EXPECT_EQ(clusters, card.max_clusters[size]) << size;
  }
}

TEST(OccupancyH200, Probe) {
  const abi::CardDesc card = h200();
  std::map<long, image::KernelInfo> kernels;
  std::map<long, KernelSettings> set;
  std::map<char, int> rows;
  for (const std::string& line : data_lines("h200/occupancy-probe.txt")) {
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    const std::vector<long> f = numbers(in);
    if (kind == "kernel") {
      ASSERT_EQ(f.size(), 11u);
      kernels[f[0]] = kernel_of(f);
      continue;
    }
    const image::KernelInfo& info = kernels.at(f[0]);
    if (kind == "set") {
      if (!set.count(f[0])) {
        // The first kernel's earlier questions left these.
        if (!info.explicit_cluster)
          set[f[0]].max_dynamic_shared_bytes = 232448, set[f[0]].non_portable_cluster = 1;
      }
      int now = -77;
      EXPECT_EQ(set_kernel_attribute(info, &set[f[0]], card, static_cast<int>(f[1]),
                                     static_cast<int>(f[2])),
                f[3])
          << line;
      get_kernel_attribute(resolve(info, set[f[0]], card), static_cast<int>(f[1]), &now);
      EXPECT_EQ(now, f[4]) << line;
      ++rows['s'];
      continue;
    }
    KernelSettings settings;
    settings.max_dynamic_shared_bytes = static_cast<int32_t>(f[1]);
    settings.carveout_percent = static_cast<int32_t>(f[2]);
    settings.cache_config = static_cast<int32_t>(f[3]);
    settings.non_portable_cluster = static_cast<int32_t>(f[4]);
    const KernelAttributes kernel = resolve(info, settings, card);
    const std::vector<long> a(f.begin() + 5, f.end());
    int status = -1, value = -77;
    ++rows[kind[0]];
    switch (kind[0]) {
      case 'A':
        status = get_kernel_attribute(kernel, static_cast<int>(a[0]), &value);
        EXPECT_EQ(status, a[1]) << line;
        EXPECT_EQ(value, a[2]) << line;
        break;
      case 'O':
        status = max_active_blocks(card, kernel, static_cast<int>(a[0]), static_cast<size_t>(a[1]),
                                   &value);
        EXPECT_EQ(status, a[2]) << line;
        EXPECT_EQ(value, a[3]) << line;
        break;
      case 'V': {
        size_t bytes = 0;
        status = available_dynamic_shared(card, kernel, static_cast<int>(a[0]),
                                          static_cast<int>(a[1]), &bytes);
        EXPECT_EQ(status, a[2]) << line;
        EXPECT_EQ(bytes, static_cast<size_t>(a[3])) << line;
        break;
      }
      case 'Z': {
        int block = -7;
        const bool varies = a[0] < 0;
        status = max_potential_block_size(card, kernel, varies ? shared_per_thread : nullptr,
                                          varies ? 0 : static_cast<size_t>(a[0]),
                                          static_cast<int>(a[1]), &value, &block);
        EXPECT_EQ(status, a[2]) << line;
        EXPECT_EQ(value, a[3]) << line;
        EXPECT_EQ(block, a[4]) << line;
        break;
      }
      case 'C':
      case 'Y': {
        ClusterLaunch launch;
        launch.block[0] = static_cast<unsigned>(a[0]);
        launch.dynamic_shared_bytes = static_cast<size_t>(a[1]);
        launch.grid[0] = 64, launch.grid[1] = launch.grid[2] = 1;
        if (kind[0] == 'C' && a[2] > 0) {
          launch.cluster[0] = static_cast<unsigned>(a[2]);
          launch.grid[0] = launch.cluster[0] * 4;
          launch.cluster[1] = launch.cluster[2] = 1;
        }
        status = kind[0] == 'C' ? max_active_clusters(card, kernel, launch, &value)
                                : max_potential_cluster_size(card, kernel, launch, &value);
        EXPECT_EQ(status, a[a.size() - 2]) << line;
        if (status == 0) {
          EXPECT_EQ(value, a.back()) << line;
        }
        break;
      }
      default: FAIL() << line;
    }
  }
  for (const char kind : {'A', 'O', 'V', 'Z', 'C', 'Y', 's'}) EXPECT_GT(rows[kind], 10) << kind;
}

// What cuKernelGetAttribute answered during training runs depends on what was set before: every
// answer must be one that the default or a value set gives.
TEST(OccupancyH200, AttributesAfterSetting) {
  const abi::CardDesc card = h200();
  image::KernelInfo kernel;
  kernel.registers = 100;
  kernel.static_shared_bytes = 1000;
  KernelSettings settings;
  int value = 0;
  get_kernel_attribute(resolve(kernel, settings, card), 8, &value);
  EXPECT_EQ(value, 48152);
  EXPECT_EQ(set_kernel_attribute(kernel, &settings, card, 8, 231448), 0);
  EXPECT_EQ(set_kernel_attribute(kernel, &settings, card, 8, 231449), 1)
      << "static and dynamic together";
  get_kernel_attribute(resolve(kernel, settings, card), 8, &value);
  EXPECT_EQ(value, 231448);
}

TEST(OccupancyH200, CodeAndVariablesInMemory) {
  image::ChunkPool code(image::kFirstCodeChunkFree);
  std::vector<uint64_t> sizes;
  std::vector<long> grew_expected, grew;
  for (const std::string& line : data_lines("h200/code-memory.txt")) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "sizes") {
      for (const long size : numbers(in)) sizes.push_back(static_cast<uint64_t>(size));
    } else if (word == "grew") {
      long index = 0;
      in >> index;
      grew_expected.push_back(index);
    } else {
      uint64_t bytes = 0, per_chunk = 0, fits = 0;
      in >> bytes >> word >> per_chunk;
      image::ChunkPool variables;
      const uint64_t unit = image::kVariableUnitBytes;
      const uint64_t rounded = (bytes + unit - 1) / unit * unit;
      EXPECT_EQ(variables.take(rounded), image::kPoolChunkBytes);
      for (fits = 1; variables.take(rounded) == 0; ++fits) {
      }
      EXPECT_EQ(fits, per_chunk) << bytes;
    }
  }
  long index = 0;
  auto load = [&](uint64_t code_bytes) {
    image::KernelInfo kernel;
    kernel.code_bytes = code_bytes;
    if (code.take(image::resident_code_bytes(kernel))) grew.push_back(index);
    ++index;
  };
  for (int i = 0; i < 11200; ++i) load(256);
  for (int round = 0; round < 12; ++round) {
    for (const uint64_t size : sizes) load(size);
  }
  EXPECT_EQ(grew, grew_expected);
}

}  // namespace
}  // namespace tonnage::cards
