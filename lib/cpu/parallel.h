// A loop over tasks on XLA's thread pool.
//
// Several handlers may run at once on few cores. A caller that only waited for the pool could hold the very thread that
// its own tasks need, so the caller takes tasks like any worker and waits at the end only for tasks already running.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "common/ffi.h"

namespace knnconv::cpu {

// Calls task(i) once for each i in [0, count), in any order and on any thread; returns when all are done.
// `task` must not throw. Results may not depend on which thread ran which task.
template <typename Task>
void ParallelFor(ffi::ThreadPool& pool, int64_t count, const Task& task) {
  struct State {
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t done = 0;
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  // Shared: a worker that starts late finds no task left, but must still be able to look.
  auto state = std::make_shared<State>();
  auto work = [count](State& s, const Task& run) {
    int64_t mine = 0;
    for (int64_t i; (i = s.next.fetch_add(1)) < count; ++mine) run(i);
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(s.mutex);
    if ((s.done += mine) == count) s.all_done.notify_all();
  };
  for (int64_t i = 0; i < helpers; ++i) {
    // `task` lives on the caller's stack: it is touched only after a task index was won, and the caller waits for
    // those.
    pool.Schedule([state, work, &task] { work(*state, task); });
  }
  work(*state, task);
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == count; });
}

}  // namespace knnconv::cpu
