// What a launch of sample_dweight_kernel.h takes. Each element type is instantiated in a source of its own.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/launch.h"
#include "hopper/sample_dweight_plan.h"

namespace knnconv::hopper {

struct SampleDweightTask {
  gpu::NeighborTable table;
  int32_t columns;
  int32_t ways, depth, boxes;  // depth: boxes of all samples
  int32_t chain;               // boxes whose products lie in one chain in the accumulators
  int32_t samples_held, stages;
  float* partials;       // a tile for each part
  float* bias_partials;  // kBiasSums for each block; null: no db
};

template <typename T>
gpu::Status LaunchSampleDweight(const gpu::LaunchSite& site, const CUtensorMap& x, const CUtensorMap& g,
                                const SampleDweightTask& task, const SampleDweightCut& cut);

}  // namespace knnconv::hopper
