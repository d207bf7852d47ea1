// The recorder's own calls of PyTorch's CPU operators.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "recorder/observe/thread.h"

namespace tonnage::recorder {

// PyTorch warns through a handler of the thread; what the recorder's own calls warn of is not the
// program's.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Everything between a call and the plain CPU operator is switched off while it lives. May be nested.
struct PlainCpuScope {
  PlainCpuScope(ThreadState& t)
      : thread(t),
        was_busy(t.busy),
        keys(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
             c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                 c10::DispatchKeySet(
                     {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                      c10::DispatchKey::PreDispatch, c10::DispatchKey::PythonDispatcher,
                      c10::DispatchKey::Functionalize,
                      c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                      c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Tracer,
                      c10::DispatchKey::DeferredInit, c10::DispatchKey::Fake})),
        warnings(&silence) {
    thread.busy = true;
  }
  ~PlainCpuScope() { thread.busy = was_busy; }
  ThreadState& thread;
  const bool was_busy;
  Silence silence;
  c10::impl::ForceDispatchKeyGuard keys;
  c10::WarningUtils::WarningHandlerGuard warnings;
  at::DisableRecordFunctionGuard no_record;
};

}  // namespace tonnage::recorder
