// A block of stem_dinput_kernel.h: its shape, and its sample.
#pragma once

#include <cstdint>

#include "gpu/fragment.h"
#include "gpu/stem_dinput_tile.h"

namespace knnconv::gpu {

// kLoads: units of 32 channels of g.
template <typename T_, int kChannels_, int kLoads_>
struct StemDinputShape {
  using T = T_;
  static constexpr int kChannels = kChannels_, kLoads = kLoads_;
  static constexpr int kWarps = kStemDinputWarps, kThreads = kWarps * kWarpSize;
  static constexpr int kRowPitch = StemRowPitch(kLoads);
  static constexpr StemTiles kTiles = StemTilesOf(kChannels);
};

// A block's place. The same in all threads.
struct StemSample {
  const char* g;
  const char* weight;
  const uint4* firsts;
  const uint2* rests;
  int64_t out;  // element of dx
};

KNNCONV_DEVICE StemSample OpenStemSample(const TapGemm& gemm, const StemDinputPlan& plan) {
  StemSample sample;
  const uint32_t batch = static_cast<uint32_t>(gemm.batch), group = blockIdx.x / batch, b = blockIdx.x % batch;
  const GroupShape& shape = gemm.groups;
  const int64_t g = gemm.source_groups.Offset(shape, group) + b * gemm.source_rows * gemm.depth;
  sample.g = static_cast<const char*>(gemm.source) + g * 2;
  sample.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, group) * 2;
  const int64_t lists = int64_t{group} * plan.stretches * plan.blocks * (kOrderedSources / 2);
  sample.firsts = plan.firsts + lists;
  sample.rests = plan.rests + lists;
  sample.out = int64_t{blockIdx.x} * gemm.nodes * gemm.columns;
  return sample;
}

}  // namespace knnconv::gpu
