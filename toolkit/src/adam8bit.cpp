#include "tonnage/torch/adam8bit.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "adam8bit_codes.h"
#include "nvrtc.h"
#include "optim_groups.h"

namespace tonnage {
namespace {

using ::torch::Tensor;
using EightBitState = Adam8bitParamState;

constexpr int64_t kBlock = 256;  // elements that share a magnitude; a warp's work on CUDA
constexpr uint32_t kWarps = 8;   // blocks of a thread block

// What one update of one parameter needs besides its tensors.
struct Update {
  float beta1, beta2, step_size, inverse_correction2_sqrt, eps, decay, l2;
};

// One element: moments from their codes to their new values, and the parameter's new value.
TONNAGE_HOST_AND_DEVICE(
    kElementText,
    TONNAGE_FN float adam_element(float p, float g, float* m, float* v, float beta1, float beta2,
                                  float step_size, float inverse_correction2_sqrt, float eps,
                                  float decay, float l2) {
      g += l2 * p;
      *m = beta1 * *m + (1.0f - beta1) * g;
      *v = beta2 * *v + (1.0f - beta2) * g * g;
      return p * decay - step_size * (*m / (TONNAGE_SQRT(*v) * inverse_correction2_sqrt + eps));
    })

constexpr const char* kPrelude = R"(
#define TONNAGE_FN __device__ __forceinline__
#define TONNAGE_CLZ __clz
#define TONNAGE_SQRT sqrtf
typedef unsigned char byte_t;
__device__ __forceinline__ float load(const float* x) { return *x; }
__device__ __forceinline__ void store(float* x, float value) { *x = value; }
struct bfloat { unsigned short bits; };
__device__ __forceinline__ float load(const bfloat* x) {
  return __uint_as_float((unsigned)x->bits << 16);
}
__device__ __forceinline__ void store(bfloat* x, float value) {
  unsigned u = __float_as_uint(value);
  x->bits = value != value ? 0x7fc0u : (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
struct half_t { unsigned short bits; };
__device__ __forceinline__ float load(const half_t* x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x->bits));
  return r;
}
__device__ __forceinline__ void store(half_t* x, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x->bits) : "f"(value));
}
__device__ __forceinline__ float warp_max(float x) {
  for (int offset = 16; offset > 0; offset >>= 1)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}
)";

constexpr const char* kKernel = R"(
extern "C" __global__ void __launch_bounds__(256) tonnage_adam8bit(
    element_t* params, const element_t* grads, byte_t* m_codes, byte_t* v_codes, float* m_scales,
    float* v_scales, long long n, float beta1, float beta2, float step_size,
    float inverse_correction2_sqrt, float eps, float decay, float l2) {
  const int lane = threadIdx.x & 31;
  const long long block = (long long)blockIdx.x * 8 + (threadIdx.x >> 5);
  const long long begin = block * 256;
  if (begin >= n) return;
  const float m_old = m_scales[block], v_old = v_scales[block];
  float m[8], v[8];
  float m_max = 0.0f, v_max = 0.0f;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const long long i = begin + k * 32 + lane;
    m[k] = v[k] = 0.0f;
    if (i < n) {
      m[k] = decode_signed(m_codes[i]) * m_old;
      v[k] = decode_unsigned(v_codes[i]) * v_old;
      store(params + i,
            adam_element(load(params + i), load(grads + i), &m[k], &v[k], beta1, beta2, step_size,
                         inverse_correction2_sqrt, eps, decay, l2));
      m_max = fmaxf(m_max, fabsf(m[k]));
      v_max = fmaxf(v_max, v[k]);
    }
  }
  m_max = warp_max(m_max);
  v_max = warp_max(v_max);
  const float m_inverse = m_max > 0.0f ? 1.0f / m_max : 0.0f;
  const float v_inverse = v_max > 0.0f ? 1.0f / v_max : 0.0f;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const long long i = begin + k * 32 + lane;
    if (i < n) {
      m_codes[i] = (byte_t)encode_signed(m[k] * m_inverse);
      v_codes[i] = (byte_t)encode_unsigned(v[k] * v_inverse);
    }
  }
  if (lane == 0) {
    m_scales[block] = m_max;
    v_scales[block] = v_max;
  }
}
)";

CudaKernel& kernel_for(at::ScalarType type) {
  const auto source = [](const char* element) {
    return std::string(kPrelude) + "typedef " + element + " element_t;\n" + codes::kText + "\n" +
           kElementText + kKernel;
  };
  static CudaKernel for_float(source("float"), "tonnage_adam8bit"),
      for_bfloat(source("bfloat"), "tonnage_adam8bit"),
      for_half(source("half_t"), "tonnage_adam8bit");
  return type == at::kFloat ? for_float : type == at::kBFloat16 ? for_bfloat : for_half;
}

// A block's values become codes; returns its magnitude.
float encode_block(const float* values, int64_t n, bool is_signed, uint8_t* out) {
  float largest = 0;
  for (int64_t i = 0; i < n; i++) largest = std::max(largest, std::fabs(values[i]));
  const float inverse = largest > 0 ? 1 / largest : 0;
  for (int64_t i = 0; i < n; i++)
    out[i] = static_cast<uint8_t>(is_signed ? codes::encode_signed(values[i] * inverse)
                                            : codes::encode_unsigned(values[i] * inverse));
  return largest;
}

template <class Element>
void update_on_cpu(const Tensor& p, const Tensor& grad, EightBitState& state, const Update& u) {
  auto* params = p.mutable_data_ptr<Element>();
  const auto* grads = grad.const_data_ptr<Element>();
  auto* m_codes = state.exp_avg().mutable_data_ptr<uint8_t>();
  auto* v_codes = state.exp_avg_sq().mutable_data_ptr<uint8_t>();
  auto* m_scales = state.exp_avg_scale().mutable_data_ptr<float>();
  auto* v_scales = state.exp_avg_sq_scale().mutable_data_ptr<float>();
  const int64_t n = p.numel();
  at::parallel_for(0, (n + kBlock - 1) / kBlock, 64, [&](int64_t first, int64_t last) {
    float m[kBlock], v[kBlock];
    for (int64_t block = first; block < last; block++) {
      const int64_t begin = block * kBlock, count = std::min(kBlock, n - begin);
      for (int64_t k = 0; k < count; k++) {
        const int64_t i = begin + k;
        m[k] = codes::decode_signed(m_codes[i]) * m_scales[block];
        v[k] = codes::decode_unsigned(v_codes[i]) * v_scales[block];
        params[i] = adam_element(params[i], grads[i], &m[k], &v[k], u.beta1, u.beta2, u.step_size,
                                 u.inverse_correction2_sqrt, u.eps, u.decay, u.l2);
      }
      m_scales[block] = encode_block(m, count, true, m_codes + begin);
      v_scales[block] = encode_block(v, count, false, v_codes + begin);
    }
  });
}

void update_on_cuda(const Tensor& p, const Tensor& grad, EightBitState& state, Update u) {
  void* params = p.data_ptr();
  const void* grads = grad.const_data_ptr();
  void* m_codes = state.exp_avg().data_ptr();
  void* v_codes = state.exp_avg_sq().data_ptr();
  void* m_scales = state.exp_avg_scale().data_ptr();
  void* v_scales = state.exp_avg_sq_scale().data_ptr();
  long long n = p.numel();
  void* arguments[] = {&params,
                       &grads,
                       &m_codes,
                       &v_codes,
                       &m_scales,
                       &v_scales,
                       &n,
                       &u.beta1,
                       &u.beta2,
                       &u.step_size,
                       &u.inverse_correction2_sqrt,
                       &u.eps,
                       &u.decay,
                       &u.l2};
  const int64_t per_launch = kBlock * kWarps;
  kernel_for(p.scalar_type())
      .launch(p.device(), static_cast<uint32_t>((n + per_launch - 1) / per_launch), kWarps * 32,
              arguments);
}

bool in_8_bits(const Tensor& p, const Adam8bitOptions& options) {
  return p.numel() >= options.min_elements();
}

void make_state(EightBitState& state, const Tensor& p, const Adam8bitOptions& options) {
  if (!in_8_bits(p, options)) {
    state.exp_avg(optim::zeros_for(p));
    state.exp_avg_sq(optim::zeros_for(p));
  } else {
    const auto bytes = p.options().dtype(at::kByte).requires_grad(false),
               floats = p.options().dtype(at::kFloat).requires_grad(false);
    const int64_t blocks = (p.numel() + kBlock - 1) / kBlock;
    state.exp_avg(at::zeros({p.numel()}, bytes));
    state.exp_avg_sq(at::zeros({p.numel()}, bytes));
    state.exp_avg_scale(at::zeros({blocks}, floats));
    state.exp_avg_sq_scale(at::zeros({blocks}, floats));
  }
}

void check(const Tensor& p, size_t index) {
  TORCH_CHECK(p.scalar_type() == at::kFloat || p.scalar_type() == at::kBFloat16 ||
                  p.scalar_type() == at::kHalf,
              "Adam8bit: a parameter (", p.sizes(), ") of group ", index, " is ", p.dtype(),
              "; float, bfloat16 and half have a kernel. Use FusedAdamW for it");
  TORCH_CHECK(p.is_non_overlapping_and_dense(), "Adam8bit: a parameter (", p.sizes(), ", strides ",
              p.strides(), ") of group ", index, " has gaps in memory. Make it contiguous");
  TORCH_CHECK(p.is_cpu() || p.is_cuda(), "Adam8bit: a parameter (", p.sizes(), ") of group ", index,
              " is on ", p.device(), "; there are kernels for the CPU and for CUDA");
}

void update_large(const Tensor& p, EightBitState& state, const Adam8bitOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const double correction1 = 1 - std::pow(beta1, state.step() + 1),
               correction2 = 1 - std::pow(beta2, state.step() + 1);
  const double decay = options.weight_decay();
  const Update update{static_cast<float>(beta1),
                      static_cast<float>(beta2),
                      static_cast<float>(options.lr() / correction1),
                      static_cast<float>(1 / std::sqrt(correction2)),
                      static_cast<float>(options.eps()),
                      static_cast<float>(options.decoupled() ? 1 - options.lr() * decay : 1),
                      static_cast<float>(options.decoupled() ? 0 : decay)};
  // The kernels walk through memory: the gradient must lie in the parameter's order.
  const Tensor grad = p.grad().strides() == p.strides()
                          ? p.grad()
                          : at::empty_like(p.detach(), at::MemoryFormat::Preserve).copy_(p.grad());
  if (p.is_cuda())
    update_on_cuda(p, grad, state, update);
  else if (p.scalar_type() == at::kFloat)
    update_on_cpu<float>(p, grad, state, update);
  else if (p.scalar_type() == at::kBFloat16)
    update_on_cpu<c10::BFloat16>(p, grad, state, update);
  else
    update_on_cpu<c10::Half>(p, grad, state, update);
  state.step(state.step() + 1);
}

// The small parameters of a group, with one kernel for those of equal device, type and step.
void update_small(const std::vector<std::pair<Tensor, EightBitState*>>& small,
                  const Adam8bitOptions& options) {
  struct Lists {
    std::vector<Tensor> params, grads, exp_avgs, exp_avg_sqs;
    std::vector<EightBitState*> states;
  };
  std::map<std::tuple<c10::DeviceType, int, at::ScalarType, int64_t>, Lists> lists;
  for (const auto& [p, state] : small) {
    Lists& l = lists[{p.device().type(), p.device().index(), p.scalar_type(), state->step()}];
    l.params.push_back(p);
    l.grads.push_back(p.grad());
    l.exp_avgs.push_back(state->exp_avg());
    l.exp_avg_sqs.push_back(state->exp_avg_sq());
    l.states.push_back(state);
  }
  const auto [beta1, beta2] = options.betas();
  for (auto& [key, l] : lists) {
    const int64_t step = std::get<3>(key) + 1;
    const std::vector<Tensor> steps(
        l.params.size(),
        at::full({}, static_cast<double>(step), l.exp_avgs[0].options().dtype(at::kFloat)));
    if (options.decoupled())
      at::_fused_adamw_(l.params, l.grads, l.exp_avgs, l.exp_avg_sqs, {}, steps, options.lr(),
                        beta1, beta2, options.weight_decay(), options.eps(),
                        /*amsgrad=*/false, /*maximize=*/false);
    else
      at::_fused_adam_(l.params, l.grads, l.exp_avgs, l.exp_avg_sqs, {}, steps, options.lr(), beta1,
                       beta2, options.weight_decay(), options.eps(),
                       /*amsgrad=*/false, /*maximize=*/false);
    for (EightBitState* state : l.states) state->step(step);
  }
}

}  // namespace

void Adam8bitOptions::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(decoupled);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(min_elements);
}

void Adam8bitOptions::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, decoupled);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, min_elements);
}

void Adam8bitParamState::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_scale);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq_scale);
}

void Adam8bitParamState::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, exp_avg_sq);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, exp_avg_scale);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, exp_avg_sq_scale);
}

std::vector<std::pair<std::string, Tensor>> Adam8bitParamState::named_states() const {
  return {{"exp_avg", exp_avg()},
          {"exp_avg_sq", exp_avg_sq()},
          {"exp_avg_scale", exp_avg_scale()},
          {"exp_avg_sq_scale", exp_avg_sq_scale()}};
}

Adam8bit::Adam8bit(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                   Adam8bitOptions defaults)
    : Optimizer(groups, std::make_unique<Adam8bitOptions>(defaults)) {
  const auto [beta1, beta2] = defaults.betas();
  TORCH_CHECK(defaults.lr() >= 0, "Adam8bit: lr is ", defaults.lr(), "; it must not be negative");
  TORCH_CHECK(0 <= beta1 && beta1 < 1 && 0 <= beta2 && beta2 < 1, "Adam8bit: betas are ", beta1,
              " and ", beta2, "; both must be in [0, 1)");
  TORCH_CHECK(defaults.eps() >= 0 && defaults.weight_decay() >= 0,
              "Adam8bit: eps and weight_decay must not be negative");
}

Tensor Adam8bit::step(LossClosure closure) {
  ::torch::NoGradGuard no_grad;
  Tensor loss = optim::run_closure(closure);
  RECORD_USER_SCOPE("Optimizer.step#Adam8bit.step");
  struct Ready {
    Tensor param;
    EightBitState* state;
  };
  std::vector<std::vector<Ready>> ready(param_groups_.size());
  for (size_t i = 0; i < ready.size(); i++)
    for (const Tensor& p : optim::ready_parameters(param_groups_[i], "Adam8bit")) {
      check(p, i);
      ready[i].push_back({p, nullptr});
    }
  for (size_t i = 0; i < ready.size(); i++) {
    const auto& options = static_cast<const Adam8bitOptions&>(param_groups_[i].options());
    for (Ready& r : ready[i]) {
      r.state = &optim::state_of<EightBitState>(
          *this, r.param, [&](EightBitState& fresh) { make_state(fresh, r.param, options); });
      if (r.param.is_cuda() && r.state->exp_avg_scale().defined())
        kernel_for(r.param.scalar_type()).prepare(r.param.device());
    }
  }
  for (size_t i = 0; i < ready.size(); i++) {
    const auto& options = static_cast<const Adam8bitOptions&>(param_groups_[i].options());
    std::vector<std::pair<Tensor, EightBitState*>> small;
    for (const Ready& r : ready[i]) {
      if (r.state->exp_avg_scale().defined())
        update_large(r.param, *r.state, options);
      else
        small.emplace_back(r.param, r.state);
    }
    update_small(small, options);
  }
  return loss;
}

void Adam8bit::save(::torch::serialize::OutputArchive& archive) const {
  ::torch::optim::serialize<Adam8bitParamState, Adam8bitOptions>(archive, *this);
}
void Adam8bit::load(::torch::serialize::InputArchive& archive) {
  ::torch::optim::serialize<Adam8bitParamState, Adam8bitOptions>(archive, *this);
}

std::tuple<Tensor, Tensor> quantize_blocks(const Tensor& values, bool is_signed) {
  TORCH_CHECK(values.is_cpu() && values.scalar_type() == at::kFloat, "quantize_blocks: values are ",
              values.dtype(), " on ", values.device(), "; they must be float on the CPU");
  const Tensor flat = values.detach().contiguous().view({-1});
  const int64_t n = flat.numel(), blocks = (n + kBlock - 1) / kBlock;
  Tensor codes = at::empty({n}, at::kByte), scales = at::empty({blocks}, at::kFloat);
  for (int64_t block = 0; block < blocks; block++)
    scales.mutable_data_ptr<float>()[block] = encode_block(
        flat.const_data_ptr<float>() + block * kBlock, std::min(kBlock, n - block * kBlock),
        is_signed, codes.mutable_data_ptr<uint8_t>() + block * kBlock);
  return {codes, scales};
}

Tensor dequantize_blocks(const Tensor& codes, const Tensor& scales, bool is_signed) {
  TORCH_CHECK(codes.is_cpu() && codes.scalar_type() == at::kByte && scales.is_cpu() &&
                  scales.scalar_type() == at::kFloat,
              "dequantize_blocks: codes must be uint8 and scales float, both on the CPU");
  const int64_t n = codes.numel();
  TORCH_CHECK(codes.is_contiguous() && scales.is_contiguous() &&
                  scales.numel() == (n + kBlock - 1) / kBlock,
              "dequantize_blocks: ", n, " codes need ", (n + kBlock - 1) / kBlock, " scales, got ",
              scales.numel(), "; both contiguous");
  Tensor values = at::empty({n}, at::kFloat);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t code = codes.const_data_ptr<uint8_t>()[i];
    values.mutable_data_ptr<float>()[i] =
        (is_signed ? codes::decode_signed(code) : codes::decode_unsigned(code)) *
        scales.const_data_ptr<float>()[i / kBlock];
  }
  return values;
}

}  // namespace tonnage
