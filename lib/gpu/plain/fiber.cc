#include "gpu/plain/fiber.h"

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace knnconv::gpu::plain {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // a kernel's accumulators lie there

Fiber *left = nullptr, *entered = nullptr;  // of the latest switch

}  // namespace

#if defined(__x86_64__)

// Saves the registers that a callee keeps, and where the stack stands in *from; goes on at `to`. swapcontext does the
// same and two system calls, which took half of the tests' time.
extern "C" void knnconv_switch_stack(void** from, void* to);

asm(R"(
.text
.type knnconv_switch_stack, @function
knnconv_switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size knnconv_switch_stack, .-knnconv_switch_stack
)");

namespace {

void* OpenStack(char* stack, void (*enter)()) {
  constexpr int kSavedRegisters = 6;
  auto* top = reinterpret_cast<uintptr_t*>(stack + kStackBytes);
  *--top = 0;  // where `enter` would return to; it also puts the stack where a call would
  *--top = reinterpret_cast<uintptr_t>(enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = 0;
  return top;
}

void SwitchStack(void** from, void* to) { knnconv_switch_stack(from, to); }

}  // namespace

#else

namespace {

void* OpenStack(char* stack, void (*enter)()) {
  // The context lies at the stack's bottom, where nothing reaches.
  auto* context = reinterpret_cast<ucontext_t*>(stack);
  getcontext(context);
  context->uc_stack.ss_sp = stack + sizeof(ucontext_t);
  context->uc_stack.ss_size = kStackBytes - sizeof(ucontext_t);
  context->uc_link = nullptr;
  makecontext(context, enter, 0);
  return context;
}

void SwitchStack(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

}  // namespace

#endif

void Fiber::Free::operator()(void* memory) const { std::free(memory); }

void Fiber::Start(void (*entry)()) {
  if (stack_ == nullptr) stack_.reset(static_cast<char*>(std::aligned_alloc(64, kStackBytes)));
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
#endif
  entry_ = entry;
  bottom_ = stack_.get();
  size_ = kStackBytes;
  top_ = OpenStack(stack_.get(), &Fiber::Enter);
}

void Fiber::Enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &left->bottom_, &left->size_);
#endif
  entered->entry_();
  std::abort();  // entries end by Finish
}

void Fiber::Switch(Fiber& other, [[maybe_unused]] bool last) {
  left = this;
  entered = &other;
#if defined(__SANITIZE_ADDRESS__)
  void* frames = nullptr;
  __sanitizer_start_switch_fiber(last ? nullptr : &frames, other.bottom_, other.size_);
  SwitchStack(&top_, other.top_);
  __sanitizer_finish_switch_fiber(frames, &left->bottom_, &left->size_);
#else
  SwitchStack(&top_, other.top_);
#endif
}

void Fiber::SwitchTo(Fiber& other) { Switch(other, false); }

void Fiber::Finish(Fiber& other) {
  Switch(other, true);
  std::abort();  // nothing comes back to a fiber that has ended
}

}  // namespace knnconv::gpu::plain
