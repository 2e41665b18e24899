// Votes and exchanges among `width` neighbouring lanes of a warp: a power of two, kGroupLanes at most, whatever the
// warp's size. All lanes of the warp call.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/fragment.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int kGroupLanes = 32;
static_assert(kWarpSize % kGroupLanes == 0);

namespace internal {

#if defined(KNNCONV_PLAIN)

inline uint64_t WarpBallot(bool predicate) { return plain::Ballot(predicate); }

template <typename T>
T WarpShuffle(T value, int lane) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = plain::FromLane(bits, lane);
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

#elif defined(__HIP_PLATFORM_AMD__)

KNNCONV_DEVICE uint64_t WarpBallot(bool predicate) { return __ballot(predicate); }

template <typename T>
KNNCONV_DEVICE T WarpShuffle(T value, int lane) {
  return __shfl(value, lane);
}

#else

KNNCONV_DEVICE uint32_t WarpBallot(bool predicate) { return __ballot_sync(~0u, predicate); }

template <typename T>
KNNCONV_DEVICE T WarpShuffle(T value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

#endif

// The first lane of the caller's group.
KNNCONV_DEVICE int FirstLane(int width) { return threadIdx.x % kWarpSize & ~(width - 1); }

}  // namespace internal

// Lanes of a warp see each other's writes to shared memory before the call.
KNNCONV_DEVICE void SyncWarp() {
#if defined(KNNCONV_PLAIN)
  plain::WaitWarp();
#elif defined(__HIP_PLATFORM_AMD__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  __syncwarp();
#endif
}

// Of the whole warp.
KNNCONV_DEVICE bool AnyLane(bool predicate) { return internal::WarpBallot(predicate) != 0; }

// A barrier of a block of kThreads that tells whether some thread's predicate holds.
template <int kThreads>
KNNCONV_DEVICE bool SyncThreadsOr(bool predicate) {
#if defined(__HIP_PLATFORM_AMD__)
  // __syncthreads_or of HIP's older device libraries shifts whole waves, which gfx10 and later cannot.
  __shared__ bool any[kThreads / kWarpSize];
  any[threadIdx.x / kWarpSize] = AnyLane(predicate);
  __syncthreads();
  bool result = false;
  for (bool warp : any) result |= warp;
  __syncthreads();
  return result;
#else
  return __syncthreads_or(predicate) != 0;
#endif
}

// Bit i: the predicate of lane i of the caller's group.
KNNCONV_DEVICE uint32_t GroupBallot(bool predicate, int width) {
  const uint32_t mask = width == 32 ? ~0u : (1u << width) - 1;
  return static_cast<uint32_t>(internal::WarpBallot(predicate) >> internal::FirstLane(width)) & mask;
}

// The value of a lane of the caller's group.
KNNCONV_DEVICE int GroupShuffle(int value, int lane, int width) {
  return internal::WarpShuffle(value, internal::FirstLane(width) + lane);
}

// The value of the lane before; the group's first lane gets its own.
KNNCONV_DEVICE int GroupShuffleUp(int value, int width) {
  const int lane = threadIdx.x % kWarpSize, first = internal::FirstLane(width);
  return internal::WarpShuffle(value, lane > first ? lane - 1 : first);
}

// The sum over the lanes of the caller's group of kGroupLanes, up to the caller.
KNNCONV_DEVICE int GroupSumUpTo(int value) {
  const int lane = threadIdx.x % kGroupLanes;
  for (int step = 1; step < kGroupLanes; step *= 2) {
    const int before = GroupShuffle(value, max(lane - step, 0), kGroupLanes);
    if (lane >= step) value += before;
  }
  return value;
}

// The sum over the caller's group, in all its lanes.
KNNCONV_DEVICE float GroupSum(float value, int width = kGroupLanes) {
  for (int step = width / 2; step > 0; step /= 2) {
    value += internal::WarpShuffle(value, static_cast<int>(threadIdx.x % kWarpSize) ^ step);
  }
  return value;
}

}  // namespace knnconv::gpu
