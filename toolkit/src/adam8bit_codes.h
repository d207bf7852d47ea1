// The 8-bit codes, written once: the CPU compiles this text, and NVRTC compiles the same text for
// CUDA.
//
// A code k > 0 holds the decade i = floor(log2 k) and the place j = k - 2^i in it: of the decades
// 10^(i-top) * (0.1, 1], the last has the most places (2^top), the one before half as many, and so
// on. The value is the middle of the place. Signed codes keep the sign in bit 7 and seven decades
// (top = 6); a "negative zero" is the value 1, so that the largest positive element is exact.
// Unsigned codes have eight decades (top = 7).
#pragma once

#include <cmath>

// Text has no directives and no comments: the preprocessor must be able to turn it into a string.
#define TONNAGE_HOST_AND_DEVICE(name, ...) \
  __VA_ARGS__                              \
  inline constexpr const char* name = #__VA_ARGS__;

#ifndef __CUDACC__
#define TONNAGE_FN inline
#define TONNAGE_CLZ __builtin_clz
#define TONNAGE_SQRT std::sqrt
#endif

namespace tonnage::codes {

TONNAGE_HOST_AND_DEVICE(
    kText,

    TONNAGE_FN float decade_scale(int below_top) {
      return below_top == 0   ? 1.0f
             : below_top == 1 ? 1e-1f
             : below_top == 2 ? 1e-2f
             : below_top == 3 ? 1e-3f
             : below_top == 4 ? 1e-4f
             : below_top == 5 ? 1e-5f
             : below_top == 6 ? 1e-6f
                              : 1e-7f;
    }

    TONNAGE_FN float decade_inverse(int below_top) {
      return below_top == 0   ? 1.0f
             : below_top == 1 ? 1e1f
             : below_top == 2 ? 1e2f
             : below_top == 3 ? 1e3f
             : below_top == 4 ? 1e4f
             : below_top == 5 ? 1e5f
             : below_top == 6 ? 1e6f
                              : 1e7f;
    }

    TONNAGE_FN float decode_magnitude(unsigned k, int top) {
      if (k == 0u) return 0.0f;
      int i = 31 - TONNAGE_CLZ(k);
      float inverse_places = 1.0f / (float)(1u << i);
      return decade_scale(top - i) *
             (0.1f + 0.9f * ((float)(k - (1u << i)) + 0.5f) * inverse_places);
    }

    TONNAGE_FN unsigned encode_magnitude(float a, int top) {
      int below = a > 1e-1f   ? 0
                  : a > 1e-2f ? 1
                  : a > 1e-3f ? 2
                  : a > 1e-4f ? 3
                  : a > 1e-5f ? 4
                  : a > 1e-6f ? 5
                  : a > 1e-7f ? 6
                              : 7;
      if (below > top) below = top;
      int i = top - below;
      int places = 1 << i;
      int j = (int)((a * decade_inverse(below) - 0.1f) * (float)places * (1.0f / 0.9f));
      j = j < 0 ? 0 : j >= places ? places - 1 : j;
      return (unsigned)(places + j);
    }

    TONNAGE_FN float decode_signed(unsigned code) {
      if (code == 0x80u) return 1.0f;
      float a = decode_magnitude(code & 0x7fu, 6);
      return code & 0x80u ? -a : a;
    }

    TONNAGE_FN unsigned encode_signed(float x) {
      float a = x < 0.0f ? -x : x;
      if (a < 2.75e-7f) return 0u;
      if (x > 0.9965f) return 0x80u;
      return encode_magnitude(a, 6) | (x < 0.0f ? 0x80u : 0u);
    }

    TONNAGE_FN float decode_unsigned(unsigned code) { return decode_magnitude(code, 7); }

    TONNAGE_FN unsigned encode_unsigned(float x) { return x > 0.0f ? encode_magnitude(x, 7) : 0u; })

}  // namespace tonnage::codes
