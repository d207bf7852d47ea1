// Files as tensors, loading ahead, augmentation.
#include "tonnage/torch/data.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "error_of.h"
#include "tonnage/torch/memory.h"

namespace data_test {

using tonnage_test::error_of;
using torch::Tensor;

// Without std::filesystem: libtorch.so exports functions of it that are another compiler's.
class Data : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tonnage_data_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const std::string& path : files_) std::remove(path.c_str());
    rmdir(folder_.c_str());
  }
  std::string file(const std::string& name) { return *files_.insert(folder_ + "/" + name).first; }
  static size_t size_of(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? static_cast<size_t>(info.st_size) : 0;
  }
  std::string bytes_of(const std::string& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string written(const char* name, const std::string& bytes) {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }
  std::string folder_;
  std::set<std::string> files_;
};

TEST_F(Data, NpyGoesThereAndBack) {
  for (auto type : {torch::kFloat, torch::kLong, torch::kByte, torch::kHalf, torch::kBool}) {
    Tensor tensor = torch::arange(60).view({3, 4, 5}).to(type);
    const std::string path = file(c10::toString(type));
    tonnage::write_npy(path, tensor);
    EXPECT_TRUE(torch::equal(tonnage::map_npy(path), tensor)) << type;
    EXPECT_EQ((size_of(path) - tensor.nbytes()) % 64, 0u);
    EXPECT_NE(error_of([&] { tonnage::write_npy(path, tensor); }).find("File exists"),
              std::string::npos);
  }
  tonnage::write_npy(file("scalar"), torch::tensor(7));
  EXPECT_EQ(tonnage::map_npy(file("scalar")).item<int>(), 7);
  // What is written to the tensor does not reach the file.
  Tensor mapped = tonnage::map_npy(file("Float"));
  mapped.zero_();
  EXPECT_EQ(tonnage::map_npy(file("Float"))[0][0][1].item<float>(), 1);
}

TEST_F(Data, NpyAsNumpyWritesIt) {
  std::string header = "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }";
  header.append(117 - header.size(), ' ');
  header += '\n';
  std::string text = std::string("\x93NUMPY\x01\x00", 8) + char(header.size()) + '\0' + header +
                     std::string("\x01\x00\x02\x00\xff\xff", 6);
  EXPECT_TRUE(torch::equal(tonnage::map_npy(written("numpy", text)),
                           torch::tensor({1, 2, -1}, torch::kShort)));
}

TEST_F(Data, BrokenFilesAreRefused) {
  tonnage::write_npy(file("good"), torch::ones({100}));
  const std::string good = bytes_of(file("good"));
  for (size_t n = 0; n < good.size(); n += 7)
    EXPECT_NE(error_of([&] { tonnage::map_npy(written("cut", good.substr(0, n))); }), "no error")
        << n;
  auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of([&] { tonnage::map_npy(written("bad", text)); });
  };
  EXPECT_NE(changed("(100,)", "(999,)").find("asks for more"), std::string::npos);
  EXPECT_NE(changed("(100,), }                ", "(4000000000,4000000000,),").find("asks for more"),
            std::string::npos);
  EXPECT_NE(changed("<f4", ">f4").find("cannot be mapped"), std::string::npos);
  EXPECT_NE(changed("False", "True ").find("Fortran"), std::string::npos);
  EXPECT_NE(changed("(100,)", "(-10,)").find("shape"), std::string::npos);
  EXPECT_NE(error_of([&] { tonnage::map_npy(file("missing")); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tonnage::map_npy(folder_); }), "no error");
}

TEST_F(Data, RawNumbers) {
  std::string bytes(4 + 12 * 4, '\0');
  for (int i = 0; i < 12; i++) bytes[4 + 4 * i] = char(i);
  const std::string path = written("raw", bytes);
  EXPECT_TRUE(torch::equal(tonnage::map_raw(path, torch::kInt, {-1, 3}, 4),
                           torch::arange(12, torch::kInt).view({4, 3})));
  EXPECT_NE(error_of([&] { tonnage::map_raw(path, torch::kInt, {13}, 4); }).find("needs more"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tonnage::map_raw(path, torch::kInt, {1}, 3); }).find("multiple of 4"),
            std::string::npos);
}

TEST_F(Data, DatasetsGiveRowsAndWindows) {
  tonnage::write_npy(file("x"), torch::arange(20).view({10, 2}));
  tonnage::MappedDataset rows(tonnage::map_npy(file("x")), torch::arange(10));
  EXPECT_EQ(*rows.size(), 10u);
  EXPECT_TRUE(torch::equal(rows.get(3).data, torch::tensor({6, 7})));
  EXPECT_THROW(rows.get(10), c10::Error);
  auto loader = torch::data::make_data_loader(rows.map(torch::data::transforms::Stack<>()),
                                              4);  // torch's own takes it too
  int64_t seen = 0;
  for (auto& batch : *loader) seen += batch.data.size(0);
  EXPECT_EQ(seen, 10);
  tonnage::TokenDataset tokens(torch::arange(11, torch::kShort), 4, 3);
  EXPECT_EQ(*tokens.size(), 3u);
  EXPECT_TRUE(torch::equal(tokens.get(2).data, torch::tensor({6, 7, 8, 9})));
  EXPECT_TRUE(torch::equal(tokens.get(2).target, torch::tensor({7, 8, 9, 10})));
  EXPECT_TRUE(torch::equal(tokens.gather(torch::tensor({0, 2}))[1],
                           torch::tensor({{1, 2, 3, 4}, {7, 8, 9, 10}})));
}

TEST_F(Data, BatchesCoverAllRowsOnce) {
  tonnage::MappedDataset rows(torch::arange(10), torch::arange(10));
  for (int64_t workers : {1, 3}) {
    tonnage::PrefetchLoader loader(
        tonnage::batches(rows, {.batch_size = 4, .shuffle = true, .seed = 3, .drop_last = false}),
        {.depth = 2, .workers = workers});
    std::vector<Tensor> seen;
    while (auto batch = loader.next()) seen.push_back((*batch)[0]);
    ASSERT_EQ(seen.size(), 3u);
    EXPECT_EQ(seen[2].numel(), 2);
    Tensor all = torch::cat(seen);
    EXPECT_FALSE(torch::equal(all, torch::arange(10)));
    EXPECT_TRUE(torch::equal(std::get<0>(all.sort()), torch::arange(10)));
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST_F(Data, WorkersRunAheadInOrderAndNoFurther) {
  std::atomic<int64_t> made{0};
  auto source = [&](int64_t i) -> std::optional<tonnage::Batch> {
    if (i >= 50) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds((i * 7919) % 500));
    made++;
    return tonnage::Batch{torch::tensor(i)};
  };
  tonnage::PrefetchLoader loader(source, {.depth = 3, .workers = 4});
  for (int64_t i = 0; i < 50; i++) {
    auto batch = loader.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ((*batch)[0].item<int64_t>(), i);
    EXPECT_LE(made.load(), i + 1 + 3);
  }
  EXPECT_FALSE(loader.next().has_value());
}

TEST_F(Data, AnErrorComesInItsPlace) {
  auto source = [](int64_t i) -> std::optional<tonnage::Batch> {
    if (i == 2) throw std::runtime_error("bad image");
    return tonnage::Batch{torch::tensor(i)};
  };
  tonnage::PrefetchLoader loader(source, {.depth = 4, .workers = 3});
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_THROW(tonnage::PrefetchLoader(source, {.depth = 0}), c10::Error);
}

TEST_F(Data, AugmentationOnlyMovesPixels) {
  Tensor images = torch::arange(2 * 3 * 6 * 6).view({2, 3, 6, 6}).to(torch::kFloat);
  tonnage::Augment same({.random_crop = false, .flip = 0});
  EXPECT_TRUE(torch::equal(same(images), images));
  tonnage::Augment mirror({.random_crop = false, .flip = 1});
  EXPECT_TRUE(torch::equal(mirror(images), images.flip(3)));
  tonnage::Augment middle({.crop = 4, .random_crop = false, .flip = 0});
  EXPECT_TRUE(torch::equal(middle(images), images.slice(2, 1, 5).slice(3, 1, 5)));
  // A random crop is a window of the padded image, flipped or not.
  tonnage::Augment crops({.crop = 5, .padding = 1, .seed = 4});
  Tensor padded = torch::constant_pad_nd(images, {1, 1, 1, 1}), out = crops(images);
  std::set<std::string> kinds;
  for (int round = 0; round < 20; round++, out = crops(images))
    for (int64_t i = 0; i < 2; i++) {
      int found = 0;
      for (int64_t y = 0; y < 4; y++)
        for (int64_t x = 0; x < 4; x++)
          for (bool flip : {false, true}) {
            Tensor window = padded[i].slice(1, y, y + 5).slice(2, x, x + 5);
            if (!torch::equal(out[i], flip ? window.flip(2) : window)) continue;
            found++;
            kinds.insert(std::to_string(y) + std::to_string(x) + std::to_string(flip));
          }
      EXPECT_EQ(found, 1);
    }
  EXPECT_GT(kinds.size(), 15u);
  tonnage::Augment again({.crop = 5, .padding = 1, .seed = 4}),
      first({.crop = 5, .padding = 1, .seed = 4});
  EXPECT_TRUE(torch::equal(first(images), again(images)));
}

TEST_F(Data, BytesBecomeNormalisedFloats) {
  Tensor bytes = torch::randint(0, 256, {2, 3, 8, 8}, torch::kByte);
  tonnage::Augment normal(
      {.random_crop = false, .flip = 0, .mean = {0.5, 0.4, 0.3}, .deviation = {0.2, 0.3, 0.4}});
  Tensor expected =
      (bytes.to(torch::kFloat) / 255 - torch::tensor({0.5, 0.4, 0.3}).view({3, 1, 1})) /
      torch::tensor({0.2, 0.3, 0.4}).view({3, 1, 1});
  EXPECT_TRUE(torch::allclose(normal(bytes), expected, 1e-5, 1e-6));
  tonnage::Augment holes({.random_crop = false, .flip = 0, .cutout = 4});
  Tensor cut = holes(torch::ones({64, 1, 16, 16}));
  Tensor zeros = (cut == 0).flatten(1).sum(1);
  EXPECT_EQ(zeros.max().item<int64_t>(), 16);
  EXPECT_GE(zeros.min().item<int64_t>(), 4);
  EXPECT_NE(error_of([&] { tonnage::Augment({.crop = 20})(bytes); }).find("does not fit"),
            std::string::npos);
}

TEST(GpuData, TheLoaderHoldsDepthPlusOneBatches) {
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  auto source = [](int64_t i) -> std::optional<tonnage::Batch> {
    if (i >= 20) return std::nullopt;
    return tonnage::Batch{torch::zeros({1 << 18})};  // 1 MiB
  };
  tonnage::PeakScope scope;
  tonnage::PrefetchLoader loader(source, {.device = torch::kCUDA, .depth = 2, .workers = 2});
  int64_t batches = 0;
  while (auto batch = loader.next()) {
    EXPECT_TRUE((*batch)[0].is_cuda());
    batches++;
  }
  EXPECT_EQ(batches, 20);
  EXPECT_EQ(scope.peak_allocated_bytes() - before, 3 << 20);
}

TEST(GpuNumbersData, BatchesArriveWhole) {
  auto source = [](int64_t i) -> std::optional<tonnage::Batch> {
    if (i >= 200) return std::nullopt;
    return tonnage::Batch{torch::full({1 << 20}, float(i))};
  };
  tonnage::PrefetchLoader loader(source, {.device = torch::kCUDA, .depth = 2, .workers = 4});
  std::vector<Tensor> kept, sums;
  for (int64_t i = 0; auto batch = loader.next(); i++) {
    if (i % 50 == 7) kept.push_back((*batch)[0]);  // stays valid
    sums.push_back((*batch)[0].min());
    sums.push_back((*batch)[0].max());
  }
  for (size_t i = 0; i < sums.size(); i++) EXPECT_EQ(sums[i].item<float>(), float(i / 2));
  for (size_t i = 0; i < kept.size(); i++)
    EXPECT_EQ(kept[i].mean().item<float>(), float(50 * i + 7));
}

}  // namespace data_test
