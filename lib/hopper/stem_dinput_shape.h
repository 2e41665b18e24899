// A block of stem_dinput_kernel.h: its shape.
#pragma once

#include "gpu/stem_dinput_tile.h"
#include "hopper/stem_dinput.h"

namespace knnconv::hopper {

inline constexpr int kStemScale = 2;  // of places, which then stay below 2^16

// kLoads: units of 32 channels of g.
template <typename T_, int kLoads_>
struct StemShape {
  using T = T_;
  static constexpr int kChannels = kStemChannels, kLoads = kLoads_, kSteps = kLoads * 2;
  static constexpr int kWarps = kStemWarpgroups * 4, kThreads = kWarps * 32;
  static constexpr int kRowPitch = gpu::StemRowPitch(kLoads);
  static constexpr int kPairs = kMostStemNodes / 2 / kThreads;  // of sources that a lane sums up
  // As gpu/stem_dinput_lists.h reads places.
  static constexpr gpu::StemTiles kTiles = {1, 1, 2, 1, 16, kStemScale};
};

}  // namespace knnconv::hopper
