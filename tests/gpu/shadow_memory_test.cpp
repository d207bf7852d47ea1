// Known content of device memory, against a plain array that knows for every byte whether it is
// known.
#include "gpu/shadow_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tonnage::gpu {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;

TEST(Content, BytesComeBackAndUnknownOnesAreSaid) {
  ShadowMemory store;
  const char text[] = "known";
  store.set(kBase, text, 5);
  char out[8] = "xxxxxxx";
  EXPECT_TRUE(store.get(kBase, out, 5));
  EXPECT_EQ(std::memcmp(out, text, 5), 0);
  EXPECT_FALSE(store.get(kBase, out, 6));
  EXPECT_EQ(store.read(kBase, out, 7), 2u);
  EXPECT_EQ(out[5], 0);
  EXPECT_TRUE(store.any(kBase + 4, 1));
  EXPECT_FALSE(store.any(kBase + 5, 100));
  store.forget(kBase + 2, 1);
  EXPECT_FALSE(store.get(kBase, out, 5));
  EXPECT_TRUE(store.get(kBase + 3, out, 2));
}

TEST(Content, APatternOfAnySizeTakesNoMemory) {
  ShadowMemory store;
  store.fill(kBase, 0x01020304, 4, 1ull << 36);
  EXPECT_EQ(store.kept_bytes(), 0u);
  uint32_t value = 0;
  EXPECT_TRUE(store.get(kBase + (1ull << 35), &value, 4));
  EXPECT_EQ(value, 0x01020304u);
  store.copy(kBase + (1ull << 40), kBase + 2, 8);
  unsigned char bytes[8];
  EXPECT_TRUE(store.get(kBase + (1ull << 40), bytes, 8));
  const unsigned char expected[8] = {2, 1, 4, 3, 2, 1, 4, 3};
  EXPECT_EQ(std::memcmp(bytes, expected, 8), 0);
}

TEST(Content, BeyondItsCapacityBytesBecomeUnknown) {
  ShadowMemory store(1000);
  std::vector<char> big(2000, 1);
  store.set(kBase, big.data(), 500);
  store.set(kBase + 100, big.data(), 2000);
  EXPECT_FALSE(store.any(kBase + 100, 2000));
  EXPECT_TRUE(store.any(kBase, 100));
  EXPECT_EQ(store.refused_bytes(), 2000u);
}

TEST(Content, TortureAgainstPlainBytes) {
  constexpr size_t kSize = 5000;
  ShadowMemory store;
  std::vector<int> plain(kSize, -1);  // -1: unknown
  std::mt19937 random(3);
  for (int round = 0; round < 20000; round++) {
    const size_t at = random() % kSize, n = random() % (kSize - at) % 300;
    switch (random() % 5) {
      case 0: {
        std::vector<unsigned char> bytes(n);
        for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
        store.set(kBase + at, bytes.data(), n);
        for (size_t i = 0; i < n; i++) plain[at + i] = bytes[i];
        break;
      }
      case 1: {
        const unsigned width = 1u << random() % 3;
        const uint32_t pattern = static_cast<uint32_t>(random());
        const size_t count = n / width * width;
        store.fill(kBase + at, pattern, width, count);
        for (size_t i = 0; i < count; i++)
          plain[at + i] = static_cast<int>((pattern >> (i % width * 8)) & 255);
        break;
      }
      case 2:
        store.forget(kBase + at, n);
        for (size_t i = 0; i < n; i++) plain[at + i] = -1;
        break;
      case 3: {
        const size_t to = random() % (kSize - n);
        store.copy(kBase + to, kBase + at, n);
        const std::vector<int> source(plain.begin() + static_cast<long>(at),
                                      plain.begin() + static_cast<long>(at + n));
        std::copy(source.begin(), source.end(), plain.begin() + static_cast<long>(to));
        break;
      }
      default: {
        std::vector<unsigned char> out(n + 1, 0xee);
        const size_t unknown = store.read(kBase + at, out.data(), n);
        size_t expected = 0;
        for (size_t i = 0; i < n; i++) {
          expected += plain[at + i] < 0;
          ASSERT_EQ(out[i], plain[at + i] < 0 ? 0 : plain[at + i]) << "round " << round;
        }
        ASSERT_EQ(unknown, expected);
        ASSERT_EQ(out[n], 0xee);
        ASSERT_EQ(store.get(kBase + at, out.data(), n), expected == 0);
        ASSERT_EQ(store.any(kBase + at, n), n > 0 && expected < n);
      }
    }
  }
}

// Gives `text`, or nothing, and counts.
class Counted : public Promise {
 public:
  Counted(int* fetched, int* released, std::string text)
      : fetched_(fetched), released_(released), text_(std::move(text)) {}
  ~Counted() override { ++*released_; }
  bool fetch(void* out, size_t n) override {
    ++*fetched_;
    if (text_.size() != n) return false;
    std::memcpy(out, text_.data(), n);
    return true;
  }

 private:
  int *fetched_, *released_;
  std::string text_;
};

TEST(Content, APromiseIsFetchedOnceWhenItIsRead) {
  ShadowMemory store;
  int fetched = 0, released = 0;
  store.promise(kBase, 8, std::make_unique<Counted>(&fetched, &released, "promised"));
  store.copy(kBase + 100, kBase + 2, 4);
  store.set(kBase + 6, "!!", 2);
  EXPECT_TRUE(store.any(kBase, 1));
  EXPECT_EQ(0, fetched) << "moved about, not read";
  char out[9] = {};
  EXPECT_TRUE(store.get(kBase + 100, out, 4));
  EXPECT_STREQ("omis", out);
  EXPECT_TRUE(store.get(kBase, out, 8));
  EXPECT_STREQ("promis!!", out);
  EXPECT_EQ(1, fetched);
  EXPECT_EQ(1, released);
}

TEST(Content, ABrokenPromiseIsUnknown) {
  ShadowMemory store;
  int fetched = 0, released = 0;
  store.promise(kBase, 4, std::make_unique<Counted>(&fetched, &released, ""));
  store.copy(kBase + 64, kBase, 4);
  char out[5] = "xxxx";
  EXPECT_FALSE(store.get(kBase, out, 4));
  EXPECT_STREQ("xxxx", out);
  EXPECT_FALSE(store.any(kBase, 4));
  EXPECT_EQ(4u, store.read(kBase + 64, out, 4));
  EXPECT_EQ(1, fetched);
}

TEST(Content, AForgottenPromiseIsReleasedUnfetched) {
  ShadowMemory store;
  int fetched = 0, released = 0;
  store.promise(kBase, 4, std::make_unique<Counted>(&fetched, &released, "some"));
  store.fill(kBase, 0, 1, 4);
  EXPECT_EQ(0, fetched);
  EXPECT_EQ(1, released);
}

// Two threads that read at once wait for the same bytes, and others are not held up meanwhile.
TEST(Content, AReaderThatWaitsHoldsNobodyUp) {
  ShadowMemory store;
  std::atomic<bool> waiting{false}, go{false};
  struct Slow : Promise {
    std::atomic<bool>*waiting, *go;
    bool fetch(void* out, size_t n) override {
      *waiting = true;
      while (!*go) std::this_thread::yield();
      std::memset(out, 'z', n);
      return true;
    }
  };
  auto slow = std::make_unique<Slow>();
  slow->waiting = &waiting;
  slow->go = &go;
  store.promise(kBase, 4, std::move(slow));
  char first[5] = {}, second[5] = {};
  std::thread one([&] { store.get(kBase, first, 4); }),
      two([&] { store.get(kBase + 1, second, 3); });
  while (!waiting) std::this_thread::yield();
  store.set(kBase + 1000, "free", 4);
  char out[5] = {};
  EXPECT_TRUE(store.get(kBase + 1000, out, 4));
  go = true;
  one.join();
  two.join();
  EXPECT_STREQ("zzzz", first);
  EXPECT_STREQ("zzz", second);
}

}  // namespace
}  // namespace tonnage::gpu
