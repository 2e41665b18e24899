// Threads of control that switch by hand, on one thread of the system; known to AddressSanitizer.
#pragma once

#include <cstddef>
#include <memory>

namespace knnconv::gpu::plain {

class Fiber {
 public:
  // One that runs already, on a stack of its own: others can switch to it once it has switched away.
  Fiber() = default;

  // Calls `entry` on the fiber's own stack when it is first switched to. `entry` ends by Finish.
  void Start(void (*entry)());

  // Leaves this fiber, which is running, for another; returns when something switches back.
  void SwitchTo(Fiber& other);

  // As SwitchTo, for the last time.
  [[noreturn]] void Finish(Fiber& other);

 private:
  static void Enter();
  void Switch(Fiber& other, bool last);

  struct Free {
    void operator()(void* memory) const;
  };

  std::unique_ptr<char, Free> stack_;
  void* top_ = nullptr;  // of the stack, where this fiber left off
  void (*entry_)() = nullptr;

  // The stack's bounds. Those of a thread's own stack are learnt from the sanitizer when it is left.
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

}  // namespace knnconv::gpu::plain
