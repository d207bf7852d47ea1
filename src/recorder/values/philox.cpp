#include "recorder/values/philox.h"

#include <ATen/Dispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include <cmath>
#include <limits>

namespace tonnage::recorder {
namespace {

using device::RandomState;

constexpr uint64_t kBlock = 256;           // threads of a block in PyTorch's distribution kernels
constexpr int64_t kDrawnFloats = 1 << 20;  // elements

struct Four {
  uint32_t x[4];
};

// Four numbers of a thread: those that follow `counter` times four others.
Four philox(uint64_t counter, uint64_t subsequence, uint64_t seed) {
  at::Philox4_32 engine(seed, subsequence, counter);
  return {{engine(), engine(), engine(), engine()}};
}

constexpr float kInverse = 2.3283064365386963e-10f;  // 2^-32
// In (0, 1], as curand has it.
float uniform(uint32_t bits) {
  return std::fma(static_cast<float>(bits), kInverse, kInverse / 2.0f);
}

// Calls make(four, k) for each element, k being which of the `unroll` numbers of a draw it is;
// elements in memory order.
template <class Scalar, class Make>
void for_each_draw(const RandomState& state, Scalar* out, uint64_t n, uint64_t unroll, Make make) {
  const uint64_t blocks =
      std::min((n + kBlock - 1) / kBlock,
               state.multiprocessors * (state.threads_per_multiprocessor / kBlock));
  const uint64_t threads = kBlock * blocks;
  for (uint64_t first = 0, call = 0; first < n; first += threads * unroll, call++) {
    for (uint64_t thread = 0; thread < threads && first + thread < n; thread++) {
      const Four four = philox(state.offset / 4 + call, thread, state.seed);
      for (uint64_t k = 0; k < unroll; k++) {
        const uint64_t i = first + thread + threads * k;
        if (i < n) out[i] = make(four, k);
      }
    }
  }
}

uint32_t narrow(const Four& four, uint64_t k) { return four.x[k]; }
uint64_t wide(const Four& four, uint64_t k) {
  return (uint64_t{four.x[2 * k]} << 32) | four.x[2 * k + 1];
}

// Ranges from here on take 64 bits for a number.
bool takes_wide(uint64_t range, bool wide_type) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
  (void)wide_type;
  return range >= uint64_t{1} << 28;
#else
  return wide_type && range >= uint64_t{1} << 32;
#endif
}

// The largest whole number that random_() draws for a type, and one more than it.
template <class Scalar>
uint64_t whole_numbers() {
  if constexpr (std::is_same_v<Scalar, bool>)
    return 2;
  else if constexpr (std::is_integral_v<Scalar>)
    return static_cast<uint64_t>(std::numeric_limits<Scalar>::max()) + 1;
  else
    return (uint64_t{1} << std::numeric_limits<Scalar>::digits) + 1;
}

// random_() without bounds: the whole numbers that the type can hold.
template <class Scalar>
void random_of_type(const RandomState& state, Scalar* out, uint64_t n) {
  if constexpr (std::is_same_v<Scalar, int64_t> || std::is_same_v<Scalar, double>)
    for_each_draw(state, out, n, 2, [](const Four& f, uint64_t k) {
      return static_cast<Scalar>(wide(f, k) % whole_numbers<Scalar>());
    });
  else
    for_each_draw(state, out, n, 4, [](const Four& f, uint64_t k) {
      return static_cast<Scalar>(narrow(f, k) % whole_numbers<Scalar>());
    });
}

template <class Scalar>
void random_in_range(const RandomState& state, Scalar* out, uint64_t n, uint64_t base,
                     uint64_t range) {
  constexpr bool wide_type = std::is_same_v<Scalar, int64_t> || std::is_same_v<Scalar, double> ||
                             std::is_same_v<Scalar, float> || std::is_same_v<Scalar, at::BFloat16>;
  if (takes_wide(range, wide_type))
    for_each_draw(state, out, n, 2, [=](const Four& f, uint64_t k) {
      return static_cast<Scalar>(static_cast<int64_t>(wide(f, k) % range + base));
    });
  else
    for_each_draw(state, out, n, 4, [=](const Four& f, uint64_t k) {
      return static_cast<Scalar>(
          static_cast<int64_t>(narrow(f, k) % static_cast<uint32_t>(range) + base));
    });
}

// From `from` to the end of the type.
template <class Scalar>
bool random_upwards(const RandomState& state, Scalar* out, uint64_t n, int64_t from) {
  if (from != std::numeric_limits<int64_t>::min()) {
    const auto base = static_cast<uint64_t>(from);
    random_in_range(state, out, n, base, whole_numbers<Scalar>() - base);
    return true;
  }
  if constexpr (!std::is_same_v<Scalar, int64_t>) return false;
  for_each_draw(state, out, n, 2, [](const Four& f, uint64_t k) {
    return static_cast<Scalar>(static_cast<int64_t>(wide(f, k)));
  });
  return true;
}

template <class Scalar>
bool random_integers(const RandomState& state, Scalar* out, uint64_t n,
                     const std::vector<c10::IValue>& arguments) {
  if (arguments.size() == 2) {
    random_of_type(state, out, n);
    return true;
  }
  if (!arguments[1].isInt()) return false;
  const int64_t first = arguments[1].toInt();
  const bool only_end = arguments.size() == 3;
  if (!only_end && !arguments[2].isInt()) return random_upwards(state, out, n, first);
  const int64_t from = only_end ? 0 : first;
  const int64_t to = only_end ? first : arguments[2].toInt();
  if (to <= from) return false;
  const auto base = static_cast<uint64_t>(from);
  random_in_range(state, out, n, base, static_cast<uint64_t>(to) - base);
  return true;
}

template <class Scalar>
bool bernoulli(const RandomState& state, Scalar* out, uint64_t n, const c10::IValue& probability) {
  if (std::is_same_v<Scalar, double>) return false;
  if (probability.isDouble()) {
    const float p = static_cast<float>(probability.toDouble());
    for_each_draw(state, out, n, 4, [=](const Four& f, uint64_t k) {
      return static_cast<Scalar>(uniform(f.x[k]) < p);
    });
    return true;
  }
  // A tensor of probabilities: each thread makes four neighbours, and starts the sequence anew each
  // time.
  if (!probability.isTensor() || probability.toTensor().scalar_type() != at::kFloat ||
      !probability.toTensor().is_contiguous())
    return false;
  const at::Tensor& p = probability.toTensor();
  if (static_cast<uint64_t>(p.numel()) != n || n > state.multiprocessors * 4 * 512 * 4)
    return false;
  const float* chance = p.const_data_ptr<float>();
  for (uint64_t thread = 0; thread * 4 < n; thread++) {
    const Four four = philox(state.offset / 4, thread, state.seed);
    for (uint64_t k = 0; k < 4 && thread * 4 + k < n; k++)
      out[thread * 4 + k] = static_cast<Scalar>(uniform(four.x[k]) <= chance[thread * 4 + k]);
  }
  return true;
}

// Real numbers: `make` turns a number in (0, 1] into the distribution's.
template <class Scalar>
bool uniform_numbers(const RandomState& state, Scalar* out, uint64_t n, double from, double to) {
  if constexpr (std::is_same_v<Scalar, double>) {
    for_each_draw(state, out, n, 2, [=](const Four& f, uint64_t k) {
      const uint64_t bits = f.x[2 * k] ^ (uint64_t{f.x[2 * k + 1]} << 21);
      const double value =
          std::fma(std::fma(static_cast<double>(bits), 0x1p-53, 0x1p-54), to - from, from);
      return value == to ? from : value;
    });
    return true;
  } else if constexpr (std::is_integral_v<Scalar>) {
    return false;
  } else {
    const float low = static_cast<float>(from), range = static_cast<float>(to) - low;
    const Scalar end = static_cast<Scalar>(to);
    for_each_draw(state, out, n, 4, [=](const Four& f, uint64_t k) {
      const Scalar value = static_cast<Scalar>(std::fma(uniform(f.x[k]), range, low));
      return value == end ? static_cast<Scalar>(from) : value;
    });
    return true;
  }
}

template <class Scalar>
bool normal_numbers(const RandomState& state, Scalar* out, uint64_t n, double mean,
                    double deviation) {
  if constexpr (std::is_same_v<Scalar, double> || std::is_integral_v<Scalar>) {
    return false;
  } else {
    constexpr float kTwoPi = 6.2831855f;
    const float m = static_cast<float>(mean), s = static_cast<float>(deviation);
    for_each_draw(
        state, out, n, 4, [=](const Four& f, uint64_t k) {  // Box and Muller, two numbers of a pair
          const float u = uniform(f.x[k & ~uint64_t{1}]);
          const float v =
              std::fma(static_cast<float>(f.x[k | 1]), kInverse * kTwoPi, kInverse * kTwoPi / 2.0f);
          const float radius = std::sqrt(-2.0f * std::log(u));
          return static_cast<Scalar>(std::fma((k & 1 ? std::cos(v) : std::sin(v)) * radius, s, m));
        });
    return true;
  }
}

template <class Scalar>
bool exponential_numbers(const RandomState& state, Scalar* out, uint64_t n, double rate) {
  if constexpr (std::is_same_v<Scalar, double> || std::is_integral_v<Scalar>) {
    return false;
  } else {
    constexpr float kHalf = std::numeric_limits<float>::epsilon() / 2;
    const float factor = -1.0f / static_cast<float>(rate);
    for_each_draw(state, out, n, 4, [=](const Four& f, uint64_t k) {
      const float u = uniform(f.x[k]);
      return static_cast<Scalar>(factor * (u >= 1.0f - kHalf ? -kHalf : std::log(u)));
    });
    return true;
  }
}

template <class Scalar>
bool draw_as(const OpInfo& info, const RandomState& state, Scalar* out, uint64_t n,
             const std::vector<c10::IValue>& arguments) {
  auto number = [&](size_t i) { return arguments[i].toScalar().toDouble(); };
  if (info.is("aten::random_")) return random_integers(state, out, n, arguments);
  if (info.is("aten::bernoulli_") && arguments.size() == 3)
    return bernoulli(state, out, n, arguments[1]);
  if (info.is("aten::uniform_") && arguments.size() == 4)
    return uniform_numbers(state, out, n, number(1), number(2));
  if (info.is("aten::normal_") && arguments.size() == 4)
    return normal_numbers(state, out, n, number(1), number(2));
  if (info.is("aten::exponential_") && arguments.size() == 3)
    return exponential_numbers(state, out, n, number(1));
  return false;
}

}  // namespace

bool draw(const OpInfo& info, const RandomState& state, std::vector<c10::IValue>& arguments) {
  if (!state.known || arguments.empty() || !arguments[0].isTensor()) return false;
  const at::Tensor& out = arguments[0].toTensor();
  // Memory order is the kernels' order only where nothing lies between the elements.
  if (!out.is_non_overlapping_and_dense() || out.numel() == 0) return false;
  bool done = false;
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, out.scalar_type(), "draw", [&] {
    done = draw_as(info, state, out.mutable_data_ptr<scalar_t>(),
                   static_cast<uint64_t>(out.numel()), arguments);
  });
  if (done) arguments.resize(1);
  return done;
}

bool keeps_drawn_floats(const OpInfo& info, const at::Tensor& result) {
  return info.random && result.numel() <= kDrawnFloats &&
         (info.is("aten::uniform_") || info.is("aten::bernoulli_") || info.is("aten::random_"));
}

}  // namespace tonnage::recorder
