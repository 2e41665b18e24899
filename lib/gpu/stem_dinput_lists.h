// Going through the lists of a stretch (stem_dinput_kernel.h) and adding up the products that they name.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// A warp's visit of a block in one stretch: how many quads of taps the lane's two sources have together, and how many
// pairs of these are the first source's.
struct StemLists {
  uint32_t begin;  // quad of the visit's first
  int quads, first_pairs;
};

KNNCONV_DEVICE StemLists FindLists(const uint32_t* visit, bool exist) {
  StemLists lists = {};
  if (!exist) return lists;
  const uint32_t word = ReadOnly(visit + 1 + threadIdx.x % kWarpSize);
  lists.begin = ReadOnly(visit);
  lists.quads = static_cast<int>(word & 0xffff);
  lists.first_pairs = static_cast<int>(word >> 16);
  return lists;
}

// Whether some lane of the visit has so many taps that each list is added up by the whole warp.
KNNCONV_DEVICE bool AreLong(const StemLists& lists) { return AnyLane(lists.quads > kMostQuadRows); }

// What is left of a visit, and the lane's next two pairs, whose load is under way. A row of quads has one of each lane
// that has more than came before.
struct StemCursor {
  const uint2* row;        // the one after the next
  uint32_t lanes;          // of the next row
  int quads, first_pairs;  // left to the lane; the latter of its first source
  uint2 quad;

  KNNCONV_DEVICE void Fetch() {
    lanes = GroupBallot(quads > 0, kGroupLanes);
    if (quads > 0) quad = ReadOnly(row + __popc(lanes & ((1u << threadIdx.x % kWarpSize) - 1)));
    row += __popc(lanes);
  }
};

KNNCONV_DEVICE StemCursor OpenCursor(const uint32_t* pairs, const StemLists& lists) {
  StemCursor cursor;
  cursor.row = reinterpret_cast<const uint2*>(pairs) + lists.begin;
  cursor.quads = AreLong(lists) ? 0 : lists.quads;
  cursor.first_pairs = lists.first_pairs;
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

// Adds the products of a visit without long lists.
template <typename Shape>
KNNCONV_DEVICE void AddShortLists(const StemDinputPlan& plan, StemCursor cursor, const char* shared,
                                  StemSourceSums<Shape>& sums) {
#pragma unroll 1
  while (cursor.lanes != 0) {
    const uint32_t pair[2] = {cursor.quad.x, cursor.quad.y};
    const bool exists = cursor.quads > 0;
    --cursor.quads;
    cursor.Fetch();
    if (exists) {
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
    }
    cursor.first_pairs -= 2;
  }
}

// Adds the products of a visit with a long list, one list after the other, a pair a lane.
template <typename Shape>
KNNCONV_DEVICE void AddLongLists(const StemDinputPlan& plan, const uint32_t* pairs, const StemLists& lists,
                                 const char* shared, StemSourceSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize;
  int64_t at = int64_t{lists.begin} * 2;
#pragma unroll 1
  for (int owner = 0; owner < kGroupLanes; ++owner) {
    const int both = GroupShuffle(lists.quads, owner, kGroupLanes) * 2;
    const int first = GroupShuffle(lists.first_pairs, owner, kGroupLanes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int count = i == 0 ? first : both - first;
      float sum[Shape::kChannels] = {};
#pragma unroll 1
      for (int pair = lane; pair < count; pair += kWarpSize) {
        float two[Shape::kChannels];
        SumPair<Shape>(plan, shared, ReadOnly(pairs + at + pair), two);
#pragma unroll
        for (int c = 0; c < Shape::kChannels; ++c) sum[c] += two[c];
      }
#pragma unroll
      for (int c = 0; c < Shape::kChannels; ++c) {
        const float all = GroupSum(sum[c]);
        if (lane == owner) sums[i][c] += all;
      }
      at += count;
    }
  }
}

}  // namespace knnconv::gpu
