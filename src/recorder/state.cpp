#include "recorder/state.h"

#include "recorder/observe/thread.h"

namespace tonnage::recorder {
namespace {

thread_local ThreadState* current_state = nullptr;
thread_local bool thread_ended = false;

// Frees the state with the thread. Tensors that are freed even later find no state and are recorded
// without context.
struct Reaper {
  ~Reaper() {
    thread_ended = true;
    delete current_state;
    current_state = nullptr;
  }
};

ThreadState* make_state() {
  static thread_local Reaper reaper;
  (void)reaper;
  current_state = new ThreadState();
  current_state->frames.reserve(64);
  return current_state;
}

}  // namespace

Recorder& recorder() {
  static Recorder* instance = new Recorder();
  return *instance;
}

ThreadState* thread_state() {
  if (current_state) return current_state;
  return thread_ended ? nullptr : make_state();
}

}  // namespace tonnage::recorder
