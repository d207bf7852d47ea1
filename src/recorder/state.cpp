#include "recorder/state.h"

#include <pthread.h>

#include "recorder/observe/thread.h"

namespace tonnage::recorder {
namespace {

thread_local ThreadState* current_state = nullptr;
thread_local bool thread_ended = false;

// Tensors that are freed later have no state, and are recorded without context.
void free_state(void* state) {
  thread_ended = true;
  current_state = nullptr;
  delete static_cast<ThreadState*>(state);
}

// The C library calls free_state when a thread with a state ends. A thread-local object with a
// destructor would go earlier, and in the main thread too, which still frees tensors while the
// process exits. Without a key (a process has 1024) the state stays.
void free_with_thread(ThreadState* state) {
  static pthread_key_t key;
  static const bool made = pthread_key_create(&key, free_state) == 0;
  if (made) pthread_setspecific(key, state);
}

ThreadState* make_state() {
  auto* state = new ThreadState();
  state->frames.reserve(64);
  current_state = state;
  free_with_thread(state);
  return state;
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
