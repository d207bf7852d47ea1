// Every allocation and free of a thread and its backward passes, with the operator, module and
// scope that made it.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tonnage::detail {

struct TraceEvent {
  uint64_t address = 0;
  int64_t size_bytes = 0;      // negative: freed
  uint32_t operator_name = 0;  // of what allocated; ids of MemoryTrace::name
  uint32_t module = 0;         // 1 + index in modules(), 0: none
  uint32_t scope = 0;
  bool backward = false;
};

// It sits in the thread's slot for a profiler's state, which is what allocators report to and what
// autograd hands on to the threads of a backward pass.
class MemoryTrace : public ::torch::profiler::impl::ProfilerStateBase {
 public:
  MemoryTrace(c10::DeviceType device, const ::torch::nn::Module* model);

  // Begins on this thread. Error: a profiler or another trace is on.
  template <class Trace = MemoryTrace>
  static std::shared_ptr<Trace> start(c10::DeviceType device, const ::torch::nn::Module* model,
                                      const char* who) {
    check_free(who);
    auto trace = std::make_shared<Trace>(device, model);
    trace->begin(trace);
    return trace;
  }
  // On the thread of start(). Twice is fine.
  void stop();

  bool memoryProfilingEnabled() const override { return true; }
  ::torch::profiler::impl::ActiveProfilerType profilerType() override {
    return ::torch::profiler::impl::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void* address, int64_t size_bytes, size_t total_allocated,
                         size_t total_reserved, c10::Device device) override;

  // Copies: a backward pass may still add to them.
  std::vector<TraceEvent> events() const;
  std::vector<TraceEvent> take_events();
  std::unordered_map<uint32_t, int64_t> calls() const;  // by operator
  std::string name(uint32_t id) const;
  const std::vector<std::string>& modules() const { return modules_; }

 private:
  friend struct TraceCallbacks;
  static void check_free(const char* who);
  void begin(std::shared_ptr<MemoryTrace> self);
  uint32_t intern(const std::string& text);
  void operator_begins(const at::RecordFunction& function);

  const c10::DeviceType device_;
  std::vector<std::string> modules_;
  std::unordered_map<const void*, uint32_t> module_of_;  // by parameter
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::unordered_map<uint32_t, int64_t> calls_;
  std::vector<std::string> names_{""};
  std::unordered_map<std::string, uint32_t> ids_{{"", 0}};
  std::unordered_map<int64_t, uint32_t> module_at_;  // by sequence number of the forward pass
  std::optional<c10::DebugInfoGuard> guard_;
  at::CallbackHandle callback_ = 0;
};

// The scopes of this thread, "a/b".
std::string current_scope();
void push_scope(const std::string& name);
void pop_scope();

}  // namespace tonnage::detail
