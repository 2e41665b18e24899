// Going through the lists of a stretch (stem_dinput_kernel.h) and adding up the products that they name.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// The lane's pairs of one stretch: of its first source, then of its second.
struct StemLists {
  int begin[3];
};

KNNCONV_DEVICE StemLists FindLists(const uint32_t* ends, bool exist) {
  StemLists lists = {};
  if (!exist) return lists;
  const uint2 both = ReadOnly(reinterpret_cast<const uint2*>(ends));
  lists.begin[0] = static_cast<int>(ReadOnly(ends - 1));
  lists.begin[1] = static_cast<int>(both.x);
  lists.begin[2] = static_cast<int>(both.y);
  return lists;
}

inline constexpr int kLongList = 24;  // pairs, beyond which the warp adds up a list together

KNNCONV_DEVICE bool IsLong(const StemLists& lists, int i) { return lists.begin[i + 1] - lists.begin[i] > kLongList; }

// Of a source, how many pairs are left, and the next one, whose load is under way.
struct StemCursor {
  const uint32_t* at;
  int left;
  uint32_t pair;

  KNNCONV_DEVICE void Fetch(uint32_t nowhere) { pair = left > 0 ? ReadOnly(at) : nowhere; }
};

struct StemCursors {
  StemCursor of[2];
};

KNNCONV_DEVICE StemCursors OpenCursors(const uint32_t* pairs, const StemLists& lists, uint32_t nowhere) {
  StemCursors cursors;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    cursors.of[i].at = pairs + lists.begin[i];
    cursors.of[i].left = IsLong(lists, i) ? 0 : lists.begin[i + 1] - lists.begin[i];
    cursors.of[i].Fetch(nowhere);
  }
  return cursors;
}

// Adds the products of both taps of a pair.
template <typename Shape>
KNNCONV_DEVICE void AddPair(const StemDinputPlan& plan, const char* shared, uint32_t both,
                            float (&sum)[Shape::kChannels]) {
#pragma unroll
  for (int tap = 0; tap < 2; ++tap) {
    const uint32_t place = tap == 0 ? both & 0xffff : both >> 16;
#pragma unroll
    for (int pair = 0; pair < Shape::kTiles.pairs; ++pair) {
      const float2 product = reinterpret_cast<const float2*>(shared)[place + pair * plan.pitch];
      sum[pair * 2] += product.x;
      sum[pair * 2 + 1] += product.y;
    }
    if (Shape::kTiles.singles != 0) {
      sum[Shape::kChannels - 1] += reinterpret_cast<const float*>(shared + plan.singles_at)[place];
    }
  }
}

template <typename Shape>
using StemSourceSums = float[2][Shape::kChannels];

// Adds the products of all lists of the warp that are not long.
template <typename Shape>
KNNCONV_DEVICE void AddShortLists(const StemDinputPlan& plan, StemCursors cursors, uint32_t nowhere, const char* shared,
                                  StemSourceSums<Shape>& sums) {
#pragma unroll 1
  while (max(cursors.of[0].left, cursors.of[1].left) > 0) {
    uint32_t pair[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      StemCursor& cursor = cursors.of[i];
      pair[i] = cursor.pair;
      ++cursor.at;
      --cursor.left;
      cursor.Fetch(nowhere);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) AddPair<Shape>(plan, shared, pair[i], sums[i]);
  }
}

// Adds the products of the warp's long lists, one after the other, a pair a lane.
template <typename Shape>
KNNCONV_DEVICE void AddLongLists(const StemDinputPlan& plan, const uint32_t* pairs, const StemLists& lists,
                                 const char* shared, StemSourceSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t left = GroupBallot(IsLong(lists, i), kGroupLanes);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const int begin = GroupShuffle(lists.begin[i], owner, kGroupLanes);
      const int end = GroupShuffle(lists.begin[i + 1], owner, kGroupLanes);
      float sum[Shape::kChannels] = {};
#pragma unroll 2
      for (int at = begin + lane; at < end; at += kWarpSize) AddPair<Shape>(plan, shared, ReadOnly(pairs + at), sum);
#pragma unroll
      for (int c = 0; c < Shape::kChannels; ++c) {
        const float all = GroupSum(sum[c]);
        if (lane == owner) sums[i][c] += all;
      }
    }
  }
}

}  // namespace knnconv::gpu
