// What launchers ask of a device. Asked of the runtime once: in the Initialize stage, so that Execute queries nothing.
#pragma once

#include <atomic>

#include "gpu/status.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

struct Device {
  int multiprocessors = 0;
  int shared_bytes = 0;  // that a block may ask for
};

inline Status GetDevice(int ordinal, Device* device) {
  constexpr int kDevices = 64;
  static std::atomic<Device> known[kDevices] = {};
  if (ordinal < kDevices) *device = known[ordinal].load(std::memory_order_relaxed);
  if (device->multiprocessors > 0) return {};
  KNNCONV_GPU_CHECK(
      gpuDeviceGetAttribute(&device->multiprocessors, gpuDeviceAttributeMultiprocessorCount, ordinal));
  KNNCONV_GPU_CHECK(
      gpuDeviceGetAttribute(&device->shared_bytes, gpuDeviceAttributeMaxSharedMemoryPerBlockOptin, ordinal));
  if (ordinal < kDevices) known[ordinal].store(*device, std::memory_order_relaxed);
  return {};
}

}  // namespace knnconv::gpu
