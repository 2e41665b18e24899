// Which devices run the code of this folder: machine code of sm_90a runs on compute capability 9.0 alone.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "gpu/status.h"

namespace knnconv::hopper {

// Asked of the runtime once a device: in the Initialize stage, so that Execute queries nothing.
inline gpu::Status IsHopper(int ordinal, bool* is) {
  constexpr int kDevices = 64;
  enum : int { kUnknown, kNo, kYes };
  static std::atomic<int> known[kDevices] = {};
  int answer = ordinal < kDevices ? known[ordinal].load(std::memory_order_relaxed) : kUnknown;
  if (answer == kUnknown) {
    int major = 0, minor = 0;
    KNNCONV_GPU_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    KNNCONV_GPU_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
    answer = major == 9 && minor == 0 ? kYes : kNo;
    if (ordinal < kDevices) known[ordinal].store(answer, std::memory_order_relaxed);
  }
  *is = answer == kYes;
  return {};
}

}  // namespace knnconv::hopper
