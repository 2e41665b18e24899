// Going through the lists of a stretch (stem_dinput_kernel.h) and adding up the products that they name.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// The lane's quads of places in one stretch: of its first source, then of its second.
struct StemLists {
  int begin[3];

  KNNCONV_DEVICE int quads() const { return begin[2] - begin[0]; }
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

// What is left of a lane's lists, and the next quad, whose load is under way.
struct StemCursor {
  const uint2* at;
  int quads, first_quads;  // left; the latter of the first source
  uint2 quad;

  KNNCONV_DEVICE void Fetch() {
    if (quads > 0) quad = ReadOnly(at);
  }
};

KNNCONV_DEVICE StemCursor OpenCursor(const uint2* quads, const StemLists& lists) {
  StemCursor cursor;
  cursor.at = quads + lists.begin[0];
  cursor.quads = AreLong(lists) ? 0 : lists.quads();
  cursor.first_quads = lists.begin[1] - lists.begin[0];
  cursor.quad = make_uint2(0, 0);
  cursor.Fetch();
  return cursor;
}

// The sums of the products at a quad's places.
template <typename Shape>
KNNCONV_DEVICE void SumQuad(const StemDinputPlan& plan, const char* shared, const uint2& quad,
                            float (&sum)[Shape::kChannels]) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const uint32_t place[4] = {quad.x & 0xffff, quad.x >> 16, quad.y & 0xffff, quad.y >> 16};
#pragma unroll
  for (int pair = 0; pair < kTiles.pairs; ++pair) {
    float2 product[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      product[i] = *reinterpret_cast<const float2*>(shared + pair * plan.pitch * 8 + place[i] * (8 / kTiles.scale));
    }
    sum[pair * 2] = (product[0].x + product[1].x) + (product[2].x + product[3].x);
    sum[pair * 2 + 1] = (product[0].y + product[1].y) + (product[2].y + product[3].y);
  }
  if (kTiles.singles != 0) {
    float product[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      product[i] = *reinterpret_cast<const float*>(shared + plan.singles_at + place[i] * (4 / kTiles.scale));
    }
    sum[Shape::kChannels - 1] = (product[0] + product[1]) + (product[2] + product[3]);
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
    const uint2 quad = cursor.quad;
    ++cursor.at;
    --cursor.quads;
    cursor.Fetch();
    float sum[Shape::kChannels];
    SumQuad<Shape>(plan, shared, quad, sum);
    const bool is_first = --cursor.first_quads >= 0;
#pragma unroll
    for (int c = 0; c < Shape::kChannels; ++c) {
      if (is_first) sums[0][c] += sum[c];
      if (!is_first) sums[1][c] += sum[c];
    }
  }
}

// Adds the products of the warp's long lists, one after the other, a quad a lane.
template <typename Shape>
KNNCONV_DEVICE void AddLongLists(const StemDinputPlan& plan, const uint2* quads, const StemLists& lists,
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
        float four[Shape::kChannels];
        SumQuad<Shape>(plan, shared, ReadOnly(quads + at), four);
#pragma unroll
        for (int c = 0; c < Shape::kChannels; ++c) sum[c] += four[c];
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
