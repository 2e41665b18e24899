// What launchers ask of a device. Asked of the runtime once: in the Initialize stage, so that Execute queries nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/status.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

// Eight bytes, which are read and written at once.
struct Device {
  int16_t multiprocessors = 0;
  int16_t capability = 0;    // ten times the compute capability: 90 is 9.0
  int32_t shared_bytes = 0;  // that a block may ask for
};

inline Status GetDevice(int ordinal, Device* device) {
  constexpr int kDevices = 64;
  static std::atomic<Device> known[kDevices] = {};
  static_assert(std::atomic<Device>::is_always_lock_free);
  if (ordinal < kDevices) *device = known[ordinal].load(std::memory_order_relaxed);
  if (device->multiprocessors > 0) return {};
  int multiprocessors = 0, major = 0, minor = 0, shared_bytes = 0;
  KNNCONV_GPU_CHECK(gpuDeviceGetAttribute(&multiprocessors, gpuDeviceAttributeMultiprocessorCount, ordinal));
  KNNCONV_GPU_CHECK(gpuDeviceGetAttribute(&major, gpuDeviceAttributeComputeCapabilityMajor, ordinal));
  KNNCONV_GPU_CHECK(gpuDeviceGetAttribute(&minor, gpuDeviceAttributeComputeCapabilityMinor, ordinal));
  KNNCONV_GPU_CHECK(gpuDeviceGetAttribute(&shared_bytes, gpuDeviceAttributeMaxSharedMemoryPerBlockOptin, ordinal));
  *device = {static_cast<int16_t>(multiprocessors), static_cast<int16_t>(10 * major + minor), shared_bytes};
  if (ordinal < kDevices) known[ordinal].store(*device, std::memory_order_relaxed);
  return {};
}

}  // namespace knnconv::gpu
