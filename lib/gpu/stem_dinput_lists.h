// Going through the lists of a stretch (stem_dinput_kernel.h) and adding up the products that they name.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// The lane's pairs of one stretch: of its first source, then of its second. Both together are an even number.
struct StemLists {
  int begin[3];

  KNNCONV_DEVICE int quads() const { return (begin[2] - begin[0]) / 2; }
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

inline constexpr int kLongLists = 16;  // quads of a lane, beyond which the warp adds up its lists together

KNNCONV_DEVICE bool AreLong(const StemLists& lists) { return lists.quads() > kLongLists; }

// What is left of a lane's lists, and the next two pairs, whose load is under way.
struct StemCursor {
  const uint2* at;
  int quads, first_pairs;  // left; the latter of the first source
  uint2 quad;

  KNNCONV_DEVICE void Fetch() {
    if (quads > 0) quad = ReadOnly(at);
  }
};

KNNCONV_DEVICE StemCursor OpenCursor(const uint32_t* pairs, const StemLists& lists) {
  StemCursor cursor;
  cursor.at = reinterpret_cast<const uint2*>(pairs + lists.begin[0]);
  cursor.quads = AreLong(lists) ? 0 : lists.quads();
  cursor.first_pairs = lists.begin[1] - lists.begin[0];
  cursor.quad = make_uint2(0, 0);
  cursor.Fetch();
  return cursor;
}

// The sums of both taps' products.
template <typename Shape>
KNNCONV_DEVICE void SumPair(const StemDinputPlan& plan, const char* shared, uint32_t both,
                            float (&sum)[Shape::kChannels]) {
  const uint32_t place[2] = {both & 0xffff, both >> 16};
#pragma unroll
  for (int pair = 0; pair < Shape::kTiles.pairs; ++pair) {
    const float2* const products = reinterpret_cast<const float2*>(shared) + pair * plan.pitch;
    const float2 first = products[place[0]], second = products[place[1]];
    sum[pair * 2] = first.x + second.x;
    sum[pair * 2 + 1] = first.y + second.y;
  }
  if (Shape::kTiles.singles != 0) {
    const float* const products = reinterpret_cast<const float*>(shared + plan.singles_at);
    sum[Shape::kChannels - 1] = products[place[0]] + products[place[1]];
  }
}

template <typename Shape>
using StemSourceSums = float[2][Shape::kChannels];

// Adds the products of all lists of the warp that are not long.
template <typename Shape>
KNNCONV_DEVICE void AddShortLists(const StemDinputPlan& plan, StemCursor cursor, const char* shared,
                                  StemSourceSums<Shape>& sums) {
#pragma unroll 1
  while (cursor.quads > 0) {
    const uint32_t pair[2] = {cursor.quad.x, cursor.quad.y};
    ++cursor.at;
    --cursor.quads;
    cursor.Fetch();
    float sum[2][Shape::kChannels];
#pragma unroll
    for (int i = 0; i < 2; ++i) SumPair<Shape>(plan, shared, pair[i], sum[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is_first = cursor.first_pairs > i;
#pragma unroll
      for (int c = 0; c < Shape::kChannels; ++c) {
        if (is_first) sums[0][c] += sum[i][c];
        if (!is_first) sums[1][c] += sum[i][c];
      }
    }
    cursor.first_pairs -= 2;
  }
}

// Adds the products of the warp's long lists, one after the other, a pair a lane.
template <typename Shape>
KNNCONV_DEVICE void AddLongLists(const StemDinputPlan& plan, const uint32_t* pairs, const StemLists& lists,
                                 const char* shared, StemSourceSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t owners = GroupBallot(AreLong(lists), kGroupLanes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll 1
    for (uint32_t left = owners; left != 0; left &= left - 1) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const int begin = GroupShuffle(lists.begin[i], owner, kGroupLanes);
      const int end = GroupShuffle(lists.begin[i + 1], owner, kGroupLanes);
      float sum[Shape::kChannels] = {};
#pragma unroll 1
      for (int at = begin + lane; at < end; at += kWarpSize) {
        float both[Shape::kChannels];
        SumPair<Shape>(plan, shared, ReadOnly(pairs + at), both);
#pragma unroll
        for (int c = 0; c < Shape::kChannels; ++c) sum[c] += both[c];
      }
#pragma unroll
      for (int c = 0; c < Shape::kChannels; ++c) {
        const float all = GroupSum(sum[c]);
        if (lane == owner) sums[i][c] += all;
      }
    }
  }
}

}  // namespace knnconv::gpu
