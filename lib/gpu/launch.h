// Launching a kernel: on which stream and device, and the two stages of an XLA call.
//
// A kernel's code is loaded and its shared memory limit is set in the Initialize stage, since neither may happen while
// a stream is captured into a graph. Execute then only launches; it allocates and queries nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/status.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

struct LaunchSite {
  gpuStream_t stream;
  int device;       // ordinal
  bool prepare;     // Initialize: make kernels ready, launch nothing
};

namespace internal {

#if defined(KNNCONV_PLAIN)

inline Status AllowShared(const void*, int bytes, int device) {
  if (bytes <= plain::kSharedBytes[device]) return {};
  return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "shared memory that the device has"};
}

template <typename... Params>
Status LaunchKernel(void (*kernel)(Params...), gpuStream_t, int64_t blocks, int threads, int shared_bytes,
                    Params... params) {
  plain::RunGrid(blocks, threads, shared_bytes, [&] { kernel(params...); });
  return {};
}

#else

inline Status AllowShared(const void* kernel, int bytes, int) {
  KNNCONV_GPU_CHECK(gpuFuncSetAttribute(kernel, gpuFuncAttributeMaxDynamicSharedMemorySize, bytes));
  return {};
}

template <typename... Params>
Status LaunchKernel(void (*kernel)(Params...), gpuStream_t stream, int64_t blocks, int threads, int shared_bytes,
                    Params... params) {
  void* arguments[] = {static_cast<void*>(&params)...};
  KNNCONV_GPU_CHECK(gpuLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                                    dim3(threads), arguments, shared_bytes, stream));
  return {};
}

#endif

}  // namespace internal

// Launches kKernel<<<blocks, threads, shared_bytes>>>(params...), or makes it ready where `site` says so. No blocks: no
// launch. `most_shared_bytes` is the same in all launches of a kernel.
template <auto kKernel, typename... Params>
Status LaunchSized(const LaunchSite& site, int64_t blocks, int threads, int shared_bytes, int most_shared_bytes,
                   Params... params) {
  static std::atomic<uint64_t> ready{0};  // a bit for each device
  const uint64_t bit = site.device < 64 ? uint64_t{1} << site.device : 0;
  if ((ready.load(std::memory_order_acquire) & bit) == 0) {
    KNNCONV_GPU_RETURN_IF_ERROR(internal::AllowShared(reinterpret_cast<const void*>(kKernel), most_shared_bytes,
                                                      site.device));
    ready.fetch_or(bit, std::memory_order_release);
  }
  if (site.prepare || blocks == 0) return {};
  if (blocks > INT32_MAX) return {gpuErrorInvalidConfiguration, __FILE__, __LINE__, "blocks <= INT32_MAX"};
  return internal::LaunchKernel(kKernel, site.stream, blocks, threads, shared_bytes, params...);
}

// The same for a kernel that always runs with kSharedBytes.
template <auto kKernel, int kSharedBytes, typename... Params>
Status Launch(const LaunchSite& site, int64_t blocks, int threads, Params... params) {
  return LaunchSized<kKernel>(site, blocks, threads, kSharedBytes, kSharedBytes, params...);
}

}  // namespace knnconv::gpu
