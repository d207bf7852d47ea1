// Made by scaled_fused.py with PyTorch 2.11.0.
#pragma once

namespace scaled_fused {

struct Row {
  float parameters[5];
  int step;  // of the state; -1: it has none
  double scale;
};
inline constexpr bool kInfinite[] = {false, false, true,  false, false,
                                     true,  true,  false, false, false};
inline constexpr int kUnscaled = 4;
inline constexpr float kStart[] = {0.5f, -1.0f, 2.0f, 0.125f, -0.75f};
inline constexpr Row kAdam[] = {
    {{0x1.cp-2f, -0x1.1p+0f, 0x1.fp+0f, 0x1p-4f, -0x1.ap-1f}, 1, 1024.0},
    {{0x1.800c2p-2f, -0x1.1ffd86p+0f, 0x1.e000dep+0f, 0x1.b5ep-17f, -0x1.bffe82p-1f}, 2, 2048.0},
    {{0x1.800c2p-2f, -0x1.1ffd86p+0f, 0x1.e000dep+0f, 0x1.b5ep-17f, -0x1.bffe82p-1f}, 2, 1024.0},
    {{0x1.402cdep-2f, -0x1.2ff6dcp+0f, 0x1.d0033p+0f, -0x1.ff9b78p-5f, -0x1.dffa84p-1f}, 3, 1024.0},
    {{0x1.006b06p-2f, -0x1.3fea3cp+0f, 0x1.c0078ep+0f, -0x1.ff88f4p-4f, -0x1.fff302p-1f}, 4, 2048.0},
    {{0x1.006b06p-2f, -0x1.3fea3cp+0f, 0x1.c0078ep+0f, -0x1.ff88f4p-4f, -0x1.fff302p-1f}, 4, 1024.0},
    {{0x1.006b06p-2f, -0x1.3fea3cp+0f, 0x1.c0078ep+0f, -0x1.ff88f4p-4f, -0x1.fff302p-1f}, 4, 512.0},
    {{0x1.819f5ap-3f, -0x1.4fd5d8p+0f, 0x1.b00e9p+0f, -0x1.7f8d54p-3f, -0x1.0ff37cp+0f}, 5, 512.0},
    {{0x1.02c854p-3f, -0x1.5fb7d6p+0f, 0x1.a018ccp+0f, -0x1.ff3cc2p-3f, -0x1.1feab2p+0f}, 6, 1024.0},
    {{0x1.08c85cp-4f, -0x1.6f8e52p+0f, 0x1.9026dcp+0f, -0x1.3f670cp-2f, -0x1.2fdea2p+0f}, 7, 1024.0},
};
inline constexpr Row kAdamW[] = {
    {{0x1.bcp-2f, -0x1.0ep+0f, 0x1.ecp+0f, 0x1.f80004p-5f, -0x1.9dp-1f}, 1, 1024.0},
    {{0x1.7888p-2f, -0x1.1be4p+0f, 0x1.d828p+0f, -0x1.7dff8p-10f, -0x1.b9c6p-1f}, 2, 2048.0},
    {{0x1.7888p-2f, -0x1.1be4p+0f, 0x1.d828p+0f, -0x1.7dff8p-10f, -0x1.b9c6p-1f}, 2, 1024.0},
    {{0x1.3596fp-2f, -0x1.29ac38p+0f, 0x1.c477bp+0f, -0x1.05ec0ep-4f, -0x1.d65274p-1f}, 3, 1024.0},
    {{0x1.e65784p-3f, -0x1.3758ep+0f, 0x1.b0eecp+0f, -0x1.01f01cp-3f, -0x1.f2a5dp-1f}, 4, 2048.0},
    {{0x1.e65784p-3f, -0x1.3758ep+0f, 0x1.b0eecp+0f, -0x1.01f01cp-3f, -0x1.f2a5dp-1f}, 4, 1024.0},
    {{0x1.e65784p-3f, -0x1.3758ep+0f, 0x1.b0eecp+0f, -0x1.01f01cp-3f, -0x1.f2a5dp-1f}, 4, 512.0},
    {{0x1.628ad4p-3f, -0x1.44ea2ep+0f, 0x1.9d8ce2p+0f, -0x1.7fec3cp-3f, -0x1.076042p+0f}, 5, 512.0},
    {{0x1.bf8b7ep-4f, -0x1.52605ap+0f, 0x1.8a51c8p+0f, -0x1.fcec64p-3f, -0x1.155182p+0f}, 6, 1024.0},
    {{0x1.7818dp-5f, -0x1.5fbb9ap+0f, 0x1.773d24p+0f, -0x1.3c7946p-2f, -0x1.2326dep+0f}, 7, 1024.0},
};
inline constexpr Row kSGD[] = {
    {{0x1.ddp-2f, -0x1.0a8p+0f, 0x1.e4p+0f, 0x1.c8p-7f, -0x1.c0cp-1f}, -1, 1024.0},
    {{0x1.af3a8p-2f, -0x1.183b4p+0f, 0x1.bf62p+0f, -0x1.0d03cp-3f, -0x1.0ab6bp+0f}, -1, 2048.0},
    {{0x1.af3a8p-2f, -0x1.183b4p+0f, 0x1.bf62p+0f, -0x1.0d03cp-3f, -0x1.0ab6bp+0f}, -1, 1024.0},
    {{0x1.79cc94p-2f, -0x1.2842ap+0f, 0x1.94a3a8p+0f, -0x1.34272p-2f, -0x1.3c22c4p+0f}, -1, 1024.0},
    {{0x1.3f16aep-2f, -0x1.39df98p+0f, 0x1.65abbcp+0f, -0x1.f2f64cp-2f, -0x1.72716cp+0f},
     -1,
     2048.0},
    {{0x1.3f16aep-2f, -0x1.39df98p+0f, 0x1.65abbcp+0f, -0x1.f2f64cp-2f, -0x1.72716cp+0f},
     -1,
     1024.0},
    {{0x1.3f16aep-2f, -0x1.39df98p+0f, 0x1.65abbcp+0f, -0x1.f2f64cp-2f, -0x1.72716cp+0f}, -1, 512.0},
    {{0x1.00e824p-2f, -0x1.4c8728p+0f, 0x1.33ece8p+0f, -0x1.5e86c4p-1f, -0x1.abf61p+0f}, -1, 512.0},
    {{0x1.814166p-3f, -0x1.5fcfcap+0f, 0x1.00808ep+0f, -0x1.c6fadcp-1f, -0x1.e76b58p+0f},
     -1,
     1024.0},
    {{0x1.fd292p-4f, -0x1.7369b8p+0f, 0x1.9876d8p-1f, -0x1.1893a4p+0f, -0x1.11eda4p+1f}, -1, 1024.0},
};
inline constexpr Row kAdamWHalf[] = {
    {{0x1.bcp-2f, -0x1.0ep+0f, 0x1.ecp+0f, 0x1.f8p-5f, -0x1.9dp-1f}, 1, 1024.0},
    {{0x1.788p-2f, -0x1.1cp+0f, 0x1.d84p+0f, -0x1.7a8p-10f, -0x1.b9cp-1f}, 2, 2048.0},
    {{0x1.788p-2f, -0x1.1cp+0f, 0x1.d84p+0f, -0x1.7a8p-10f, -0x1.b9cp-1f}, 2, 1024.0},
    {{0x1.358p-2f, -0x1.29cp+0f, 0x1.c48p+0f, -0x1.05cp-4f, -0x1.d64p-1f}, 3, 1024.0},
    {{0x1.e64p-3f, -0x1.378p+0f, 0x1.b1p+0f, -0x1.01cp-3f, -0x1.f28p-1f}, 4, 2048.0},
    {{0x1.e64p-3f, -0x1.378p+0f, 0x1.b1p+0f, -0x1.01cp-3f, -0x1.f28p-1f}, 4, 1024.0},
    {{0x1.e64p-3f, -0x1.378p+0f, 0x1.b1p+0f, -0x1.01cp-3f, -0x1.f28p-1f}, 4, 512.0},
    {{0x1.628p-3f, -0x1.45p+0f, 0x1.9d8p+0f, -0x1.7fcp-3f, -0x1.074p+0f}, 5, 512.0},
    {{0x1.bf8p-4f, -0x1.528p+0f, 0x1.8a4p+0f, -0x1.fccp-3f, -0x1.154p+0f}, 6, 1024.0},
    {{0x1.77cp-5f, -0x1.5fcp+0f, 0x1.774p+0f, -0x1.3c8p-2f, -0x1.23p+0f}, 7, 1024.0},
};

}  // namespace scaled_fused
