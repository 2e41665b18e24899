// Kernels that start before the one in front of them on the stream has ended (programmatic dependent launch), on
// NVIDIA's devices of compute capability 9.0 on. Elsewhere kernels follow each other as always.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/launch.h"

namespace knnconv::gpu {

// Lets a kernel that LaunchDependent has put behind this one start as soon as all blocks of this one have called or
// ended, and there is room for it.
KNNCONV_DEVICE void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel in front has ended and its writes are visible. A kernel that starts early calls it on all
// ways to its end: else the one behind it could overtake the one in front.
KNNCONV_DEVICE void WaitForPrerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if defined(__CUDACC__)
namespace internal {

// Whether the kernel's code on this device knows the two functions above: a driver may have compiled it from PTX for an
// older one, in which they are empty.
template <auto kKernel>
Status MayStartEarly(int device, bool* may) {
  static std::atomic<uint64_t> asked{0}, early{0};  // a bit for each device
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  *may = (early.load(std::memory_order_acquire) & bit) != 0;
  if ((asked.load(std::memory_order_acquire) & bit) != 0) return {};
  cudaFuncAttributes code;
  KNNCONV_GPU_CHECK(cudaFuncGetAttributes(&code, reinterpret_cast<const void*>(kKernel)));
  *may = code.ptxVersion >= 90;
  if (*may) early.fetch_or(bit, std::memory_order_release);
  asked.fetch_or(bit, std::memory_order_release);
  return {};
}

}  // namespace internal
#endif

// Launch of a kernel that may start early, as LaunchSized. What it reads before WaitForPrerequisites is older than the
// kernel in front.
template <auto kKernel, typename... Params>
Status LaunchDependentSized(const LaunchSite& site, int64_t blocks, int threads, int shared_bytes,
                            int most_shared_bytes, Params... params) {
#if defined(__CUDACC__)
  bool early;
  KNNCONV_GPU_RETURN_IF_ERROR(internal::MayStartEarly<kKernel>(site.device, &early));
  if (early && !site.prepare && blocks > 0) {
    // No blocks: it makes the kernel ready.
    KNNCONV_GPU_RETURN_IF_ERROR((LaunchSized<kKernel>(site, 0, threads, shared_bytes, most_shared_bytes, params...)));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = site.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    KNNCONV_GPU_CHECK(cudaLaunchKernelEx(&config, kKernel, params...));
    return {};
  }
#endif
  return LaunchSized<kKernel>(site, blocks, threads, shared_bytes, most_shared_bytes, params...);
}

// The same without shared memory of a size given at launch.
template <auto kKernel, typename... Params>
Status LaunchDependent(const LaunchSite& site, int64_t blocks, int threads, Params... params) {
  return LaunchDependentSized<kKernel>(site, blocks, threads, 0, 0, params...);
}

}  // namespace knnconv::gpu
