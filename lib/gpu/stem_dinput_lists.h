// Going through the lists of a stretch (stem_dinput_kernel.h) and adding up the products that they name. The kernel
// that writes lists may run when this one starts, so that they are not read by ReadOnly, which compilers move anywhere.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// What a lane's two sources of one stretch have: a quad each, and further ones, those of the first source in front.
struct StemLists {
  uint4 first;
  uint2 rest;

  KNNCONV_DEVICE int begin() const { return static_cast<int>(rest.x); }
  KNNCONV_DEVICE int quads(int i) const { return static_cast<int>(i == 0 ? rest.y & 0xffff : rest.y >> 16); }
};

// A lane's way through the lists: of its two sources of a block.
struct ListWalk {
  const uint4* firsts;
  const uint2* rests;

  KNNCONV_DEVICE explicit ListWalk(const StemSample& sample, int block)
      : firsts(sample.firsts + block * kPairs + threadIdx.x % kWarpSize),
        rests(sample.rests + block * kPairs + threadIdx.x % kWarpSize) {}

  // Of the block so many further on.
  KNNCONV_DEVICE StemLists Find(int blocks) const {
    return {firsts[blocks * kPairs], rests[blocks * kPairs]};
  }
  // Every stretch has the same blocks.
  KNNCONV_DEVICE void GoOn(const StemDinputPlan& plan) {
    firsts += plan.blocks * kPairs;
    rests += plan.blocks * kPairs;
  }

 private:
  static constexpr int kPairs = kOrderedSources / 2;
};

inline constexpr int kLongLists = 16;  // quads of a lane, beyond which the warp adds up its lists together

KNNCONV_DEVICE bool AreLong(const StemLists& lists) { return lists.quads(0) + lists.quads(1) > kLongLists; }

// What is left of a lane's lists, and the next quad, whose load is under way.
struct StemCursor {
  const uint2* at;
  int quads, first_quads;  // left; the latter of the first source
  uint2 quad;

  KNNCONV_DEVICE void Fetch() {
    if (quads > 0) quad = *at;
  }
};

KNNCONV_DEVICE StemCursor OpenCursor(const StemDinputPlan& plan, const StemLists& lists) {
  StemCursor cursor;
  cursor.at = plan.quads + lists.begin();
  cursor.quads = AreLong(lists) ? 0 : lists.quads(0) + lists.quads(1);
  cursor.first_quads = lists.quads(0);
  cursor.quad = make_uint2(0, 0);
  cursor.Fetch();
  return cursor;
}

// Where a stretch's products lie in shared memory: the first channel pair's, and single channels. As numbers, so that a
// place is added to one in one instruction.
class StretchProducts {
 public:
  KNNCONV_DEVICE StretchProducts(const StemDinputPlan& plan, const char* shared)
      : pairs_(Address(shared)), singles_(pairs_ + plan.singles_at), pitch_(plan.pitch * 8) {}

  KNNCONV_DEVICE float2 Pair(int pair, uint32_t at) const {
    return *static_cast<const float2*>(Pointer(pairs_ + pair * pitch_ + at));
  }
  KNNCONV_DEVICE float Single(uint32_t at) const { return *static_cast<const float*>(Pointer(singles_ + at)); }

 private:
#if defined(KNNCONV_PLAIN)
  using Number = uintptr_t;
  static Number Address(const char* shared) { return reinterpret_cast<Number>(shared); }
  static const void* Pointer(Number at) { return reinterpret_cast<const void*>(at); }
#else
  using Number = uint32_t;
  KNNCONV_DEVICE static Number Address(const char* shared) {
    Number address = static_cast<Number>(__cvta_generic_to_shared(shared));
    asm("" : "+r"(address));  // else it is computed anew for each use
    return address;
  }
  KNNCONV_DEVICE static const void* Pointer(Number at) { return __cvta_shared_to_generic(at); }
#endif

  Number pairs_, singles_;
  int pitch_;  // bytes from a channel pair's products to the next pair's
};

// The sums of the products at a quad's places.
template <typename Shape>
KNNCONV_DEVICE void SumQuad(const StretchProducts& products, const uint2& quad, float (&sum)[Shape::kChannels]) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const uint32_t place[4] = {quad.x & 0xffff, quad.x >> 16, quad.y & 0xffff, quad.y >> 16};
#pragma unroll
  for (int pair = 0; pair < kTiles.pairs; ++pair) {
    float2 product[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) product[i] = products.Pair(pair, place[i] * (8 / kTiles.scale));
    sum[pair * 2] = (product[0].x + product[1].x) + (product[2].x + product[3].x);
    sum[pair * 2 + 1] = (product[0].y + product[1].y) + (product[2].y + product[3].y);
  }
  if (kTiles.singles != 0) {
    float product[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) product[i] = products.Single(place[i] * (4 / kTiles.scale));
    sum[Shape::kChannels - 1] = (product[0] + product[1]) + (product[2] + product[3]);
  }
}

template <typename Shape>
using StemSourceSums = float[2][Shape::kChannels];

// Adds the products of the lane's first quads.
template <typename Shape>
KNNCONV_DEVICE void AddFirsts(const StretchProducts& products, const StemLists& lists, StemSourceSums<Shape>& sums) {
  float sum[2][Shape::kChannels];
  SumQuad<Shape>(products, make_uint2(lists.first.x, lists.first.y), sum[0]);
  SumQuad<Shape>(products, make_uint2(lists.first.z, lists.first.w), sum[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < Shape::kChannels; ++c) sums[i][c] += sum[i][c];
  }
}

// Adds the products of all further lists of the warp that are not long.
template <typename Shape>
KNNCONV_DEVICE void AddShortLists(const StretchProducts& products, StemCursor cursor, StemSourceSums<Shape>& sums) {
#pragma unroll 1
  while (cursor.quads > 0) {
    const uint2 quad = cursor.quad;
    ++cursor.at;
    --cursor.quads;
    cursor.Fetch();
    float sum[Shape::kChannels];
    SumQuad<Shape>(products, quad, sum);
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
KNNCONV_DEVICE void AddLongLists(const StretchProducts& products, const uint2* quads, const StemLists& lists,
                                 StemSourceSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t owners = GroupBallot(AreLong(lists), kGroupLanes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll 1
    for (uint32_t left = owners; left != 0; left &= left - 1) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const int begin = GroupShuffle(lists.begin() + (i == 0 ? 0 : lists.quads(0)), owner, kGroupLanes);
      const int end = begin + GroupShuffle(lists.quads(i), owner, kGroupLanes);
      float sum[Shape::kChannels] = {};
#pragma unroll 1
      for (int at = begin + lane; at < end; at += kWarpSize) {
        float four[Shape::kChannels];
        SumQuad<Shape>(products, quads[at], four);
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

// Adds all that a block's sources have in a stretch. `cursor` is of `lists`.
template <typename Shape>
KNNCONV_DEVICE void AddLists(const StemDinputPlan& plan, const StretchProducts& products, const StemLists& lists,
                             const StemCursor& cursor, StemSourceSums<Shape>& sums) {
  AddFirsts<Shape>(products, lists, sums);
  AddShortLists<Shape>(products, cursor, sums);
  if (AnyLane(AreLong(lists))) AddLongLists<Shape>(products, plan.quads, lists, sums);
}

// Stores the sums of all sources, which lie as dx does: neighbouring lanes write neighbouring elements.
template <typename Shape>
KNNCONV_DEVICE void StoreSums(const TapGemm& gemm, const StemSample& sample, const float* sums) {
  const int count = static_cast<int>(gemm.nodes) * Shape::kChannels;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
    StoreElement(gemm.out, gemm.out_type, sample.out + i, sums[i]);
  }
}

// The products of a place that no tap has.
template <typename Shape>
KNNCONV_DEVICE void WriteNowhere(const StemDinputPlan& plan, char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
#pragma unroll
  for (int pair = 0; pair < kTiles.pairs; ++pair) {
    float2* const at = reinterpret_cast<float2*>(shared + plan.nowhere * (8 / kTiles.scale));
    at[pair * plan.pitch] = make_float2(0, 0);
  }
  char* const single = shared + plan.singles_at + plan.nowhere * (4 / kTiles.scale);
  if (kTiles.singles != 0) *reinterpret_cast<float*>(single) = 0.0f;
}

}  // namespace knnconv::gpu
