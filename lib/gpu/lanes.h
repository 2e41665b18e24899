// Votes and exchanges among `width` neighbouring lanes of a warp (a power of two, at most 32). All lanes of the warp call.
#pragma once

#include <cstdint>

#include "gpu/fragment.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
static_assert(kWarpSize == 32, "masks are 32 bits wide");

KNNCONV_DEVICE bool AnyLane(bool predicate) { return __any_sync(kAllLanes, predicate); }

// Bit i: the predicate of lane i of the caller's group.
KNNCONV_DEVICE uint32_t GroupBallot(bool predicate, int width) {
  const int first = threadIdx.x % kWarpSize & ~(width - 1);
  const uint32_t mask = width == 32 ? kAllLanes : (1u << width) - 1;
  return __ballot_sync(kAllLanes, predicate) >> first & mask;
}

KNNCONV_DEVICE int GroupShuffle(int value, int lane, int width) { return __shfl_sync(kAllLanes, value, lane, width); }

// The value of the lane before; the group's first lane gets its own.
KNNCONV_DEVICE int GroupShuffleUp(int value, int width) { return __shfl_up_sync(kAllLanes, value, 1, width); }

}  // namespace knnconv::gpu
