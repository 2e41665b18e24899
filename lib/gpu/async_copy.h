// 16-byte copies from global to shared memory that run while the caller computes (sm_80 and later; elsewhere they are
// done at once, which the same barriers make right).
#pragma once

#include <cstdint>

#include "gpu/vendor.h"

namespace knnconv::gpu {

// Copies 16 bytes through registers, or writes zeros and reads nothing where `valid` is false. Both addresses are
// 16-byte aligned.
KNNCONV_DEVICE void Copy16(void* shared, const void* global, bool valid) {
  *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
}

// The same, while the caller goes on.
KNNCONV_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
#if defined(KNNCONV_PLAIN)
  plain::StartCopy(shared, valid ? global : nullptr);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
#else
  Copy16(shared, global, valid);
#endif
}

// Brings the line at `global` near, to the second-level cache, while the caller goes on.
KNNCONV_DEVICE void PrefetchLine([[maybe_unused]] const void* global) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}

// Closes a batch of the calling thread's copies.
KNNCONV_DEVICE void CommitCopies() {
#if defined(KNNCONV_PLAIN)
  plain::CommitCopies();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of the calling thread's latest batches are unfinished.
template <int kPending>
KNNCONV_DEVICE void WaitForCopies() {
#if defined(KNNCONV_PLAIN)
  plain::WaitForCopies(kPending);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace knnconv::gpu
