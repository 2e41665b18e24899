// What launchers ask of a device. Asked of the runtime once: in the Initialize stage, so that Execute queries nothing.
#pragma once

#include <atomic>

#include "gpu/status.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

inline Status CountMultiprocessors(int device, int* count) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices] = {};
  if (device < kDevices) *count = known[device].load(std::memory_order_relaxed);
  if (device >= kDevices || *count == 0) {
    KNNCONV_GPU_CHECK(gpuDeviceGetAttribute(count, gpuDeviceAttributeMultiprocessorCount, device));
    if (device < kDevices) known[device].store(*count, std::memory_order_relaxed);
  }
  return {};
}

}  // namespace knnconv::gpu
