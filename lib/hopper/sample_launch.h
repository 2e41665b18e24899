// What a launch of sample_kernel.h takes. Each element type is instantiated in a source of its own.
#pragma once

#include <cstdint>

#include "gpu/divisor.h"
#include "gpu/launch.h"
#include "hopper/sample_plan.h"

namespace knnconv::hopper {

struct SampleTask {
  const void *x, *weight;  // [samples, sources, 64], [slots, 64, columns]
  const int32_t* indices;  // [nodes, slots]
  const float* bias;       // or null
  void* out;
  gpu::Element out_type;
  bool zero_empty_rows;
  int32_t items, strips, samples_held;
  gpu::Divisor by_parts;
  int32_t nodes, sources, slots, columns;
  int32_t sample_room;  // bytes
};

template <typename T>
gpu::Status LaunchSamples(const gpu::LaunchSite& site, const SampleTask& task, int64_t blocks, int shared_bytes);

}  // namespace knnconv::hopper
