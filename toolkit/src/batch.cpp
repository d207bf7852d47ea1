#include "tonnage/torch/batch.h"

#include <ATen/Context.h>
#include <ATen/ops/_foreach_mul.h>

#include <cmath>
#include <cstring>
#include <new>

#include "device_allocator.h"

namespace tonnage {

double scaled_learning_rate(double base_rate, int64_t base_batch, int64_t batch,
                            LearningRateRule rule) {
  TORCH_CHECK_VALUE(base_batch > 0 && batch > 0,
                    "scaled_learning_rate: batch sizes must be positive");
  const double ratio = static_cast<double>(batch) / static_cast<double>(base_batch);
  if (rule == LearningRateRule::kLinear) return base_rate * ratio;
  if (rule == LearningRateRule::kSquareRoot) return base_rate * std::sqrt(ratio);
  return base_rate;
}

GradientAccumulator::GradientAccumulator(::torch::optim::Optimizer& optimizer,
                                         const AccumulatorOptions& options)
    : optimizer_(optimizer), options_(options) {
  TORCH_CHECK_VALUE(options.window >= 1, "GradientAccumulator: window must be 1 or more, not ",
                    options.window);
}

bool GradientAccumulator::backward(const ::torch::Tensor& mean_loss, int64_t units) {
  TORCH_CHECK(
      mean_loss.defined() && mean_loss.numel() == 1,
      "GradientAccumulator::backward: the loss must be one number, the mean over its units");
  TORCH_CHECK_VALUE(units >= 1, "GradientAccumulator::backward: units must be 1 or more, not ",
                    units);
  if (parts_ == 0) {
    first_units_ = units;
    full_units_ = static_cast<double>(units) * static_cast<double>(options_.window);
  }
  // Every loss is weighed by its units against those that a window of equal parts would have; what
  // the window really had is put right at its end. So sums stay in the range of one mean's
  // gradients, and equal parts need no second pass.
  ::torch::Tensor loss = mean_loss / static_cast<double>(options_.window);
  if (units != first_units_)
    loss = loss * (static_cast<double>(units) / static_cast<double>(first_units_));
  if (options_.scaler) loss = options_.scaler->scale(loss);
  loss.backward();
  parts_++;
  units_ += units;
  if (parts_ < options_.window) return false;
  update(false);
  return true;
}

bool GradientAccumulator::finish() {
  if (parts_ == 0) return false;
  update(true);
  return true;
}

void GradientAccumulator::reset() {
  parts_ = units_ = 0;
  optimizer_.zero_grad(options_.set_to_none);
}

void GradientAccumulator::scale_gradients(double factor) {
  if (factor == 1) return;
  at::NoGradGuard no_grad;
  for (const auto& group : optimizer_.param_groups()) {
    std::vector<::torch::Tensor> gradients;
    for (const auto& p : group.params())
      if (p.grad().defined()) gradients.push_back(p.grad());
    if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
  }
}

void GradientAccumulator::update(bool partial) {
  scale_gradients(full_units_ / static_cast<double>(units_));
  if (options_.scaler && options_.before_step) options_.scaler->unscale_(optimizer_);
  if (options_.before_step) options_.before_step();
  std::vector<double> rates;
  const bool change_rates = partial && parts_ < options_.window &&
                            options_.partial_window_rule != LearningRateRule::kConstant;
  if (change_rates)
    for (auto& group : optimizer_.param_groups()) {
      rates.push_back(group.options().get_lr());
      const double ratio = static_cast<double>(units_) / full_units_;
      group.options().set_lr(options_.partial_window_rule == LearningRateRule::kLinear
                                 ? rates.back() * ratio
                                 : rates.back() * std::sqrt(ratio));
    }
  auto put_rates_back = [&] {
    for (size_t i = 0; i < rates.size(); i++)
      optimizer_.param_groups()[i].options().set_lr(rates[i]);
  };
  try {
    if (options_.scaler) {
      options_.scaler->step(optimizer_);
      options_.scaler->update();
    } else {
      optimizer_.step();
    }
  } catch (...) {
    put_rates_back();
    throw;
  }
  put_rates_back();
  optimizer_.zero_grad(options_.set_to_none);
  parts_ = units_ = 0;
  updates_++;
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
      dynamic_cast<const std::bad_alloc*>(&error))
    return true;
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const char* text = torch_error ? torch_error->what_without_backtrace() : error.what();
  for (const char* sign :
       {"out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
        "CUFFT_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_ALLOC_FAILED",
        "CUDA_ERROR_OUT_OF_MEMORY", "can't allocate memory"})
    if (std::strstr(text, sign)) return true;
  return false;
}

void release_cached_memory() {
  if (!at::globalContext().hasCUDA()) return;
  if (compat::DeviceAllocator* allocator = device_allocator(c10::kCUDA)) allocator->emptyCache();
}

namespace {

// Runs one attempt in a frame of its own: when this returns, nothing of a failed one is left. The
// error's text, nothing if it worked.
std::optional<std::string> out_of_memory_in(const std::function<void()>& attempt) {
  try {
    attempt();
    return std::nullopt;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    return std::string(torch_error ? torch_error->what_without_backtrace() : error.what());
  }
}

// The next smaller workload and what changed; false if there is none.
bool lower(Workload& w, const Workload& start, const DegradeOptions& o, std::string& what) {
  if (w.batch_size > o.min_batch_size) {
    const int64_t next = std::max(o.min_batch_size, w.batch_size / 2);
    what = "batch size " + std::to_string(w.batch_size) + " -> " + std::to_string(next);
    w.batch_size = next;
    w.learning_rate_factor = scaled_learning_rate(1, start.batch_size, next, o.learning_rate_rule);
    return true;
  }
  if (o.min_resolution > 0 && w.resolution > o.min_resolution) {
    const int64_t multiple = std::max<int64_t>(1, o.resolution_multiple);
    int64_t next = w.resolution * 3 / 4 / multiple * multiple;
    next = std::max(next, o.min_resolution);
    what = "resolution " + std::to_string(w.resolution) + " -> " + std::to_string(next);
    w.resolution = next;
    return true;
  }
  if (w.width > o.min_width) {
    const double next = std::max(o.min_width, w.width / 2);
    char text[64];
    std::snprintf(text, sizeof text, "width %.4g -> %.4g", w.width, next);
    what = text;
    w.width = next;
    return true;
  }
  if (o.may_freeze && !w.frozen) {
    what = "all but the head frozen";
    w.frozen = true;
    return true;
  }
  if (o.may_use_cpu && w.device != c10::kCPU) {
    what = "device CPU";
    w.device = c10::kCPU;
    return true;
  }
  return false;
}

}  // namespace

int64_t find_batch_size(const std::function<void(int64_t)>& attempt,
                        const FindBatchOptions& options) {
  const int64_t multiple = options.multiple_of;
  TORCH_CHECK_VALUE(
      multiple >= 1 && options.start >= 1 && options.max >= multiple,
      "find_batch_size: start and multiple_of must be 1 or more, max at least multiple_of");
  TORCH_CHECK_VALUE(options.keep_free >= 0 && options.keep_free <= 0.9,
                    "find_batch_size: keep_free must be between 0 and 0.9");
  auto fits = [&](int64_t units) {
    release_cached_memory();
    return !out_of_memory_in([&] { attempt(units * multiple); }).has_value();
  };
  const int64_t limit = options.max / multiple;
  int64_t good = 0, bad = limit + 1;  // in units of multiple_of
  for (int64_t units = std::min(limit, std::max<int64_t>(1, options.start / multiple));
       good < limit;) {
    if (!fits(units)) {
      bad = units;
      break;
    }
    good = units;
    units = units > limit / 2 ? limit : units * 2;
  }
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  release_cached_memory();
  if (good == 0) return 0;
  return std::max<int64_t>(
             1, static_cast<int64_t>(static_cast<double>(good) * (1 - options.keep_free))) *
         multiple;
}

DegradeResult run_or_degrade(const std::function<void(const Workload&)>& attempt, Workload start,
                             const DegradeOptions& options) {
  TORCH_CHECK_VALUE(options.min_batch_size >= 1 && options.min_width > 0,
                    "run_or_degrade: min_batch_size must be 1 or more and min_width positive");
  DegradeResult result{start, {}};
  while (auto error = out_of_memory_in([&] { attempt(result.workload); })) {
    release_cached_memory();
    std::string what;
    if (!lower(result.workload, start, options, what)) {
      std::string tried = result.changes.empty() ? "nothing could be lowered" : "tried";
      for (const auto& change : result.changes)
        tried += (&change == result.changes.data() ? ": " : ", ") + change;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "run_or_degrade: still out of memory (", tried,
                       "). The last error: ", *error);
    }
    result.changes.push_back(what);
    if (options.on_change) options.on_change(what);
  }
  return result;
}

}  // namespace tonnage
