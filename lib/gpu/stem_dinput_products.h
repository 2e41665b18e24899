// The products of a stretch of rows of g with all slots' weights (stem_dinput_kernel.h), into shared memory.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/matrix_ops.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// Units of 8 rows of g that a stretch has.
KNNCONV_DEVICE int StretchUnits(const TapGemm& gemm, const StemDinputPlan& plan, int stretch) {
  const int64_t left = gemm.source_rows - int64_t{stretch} * plan.stretch;
  return static_cast<int>((min(left, int64_t{plan.stretch}) + 7) / 8);
}

// Copies a stretch's rows of g; zeros for rows and channels that do not exist.
template <typename Shape>
KNNCONV_DEVICE void CopyCotangent(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample,
                                  int stretch, char* to) {
  constexpr int kLine = Shape::kLoads * 4;
  const int64_t first = int64_t{stretch} * plan.stretch;
  const int count = StretchUnits(gemm, plan, stretch) * 8 * kLine;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
    const int row = i / kLine, at = i % kLine * 8;
    const bool exists = first + row < gemm.source_rows && at < gemm.depth;
    CopyAsync16(to + row * Shape::kRowPitch + at * 2, sample.g + ((first + row) * gemm.depth + at) * 2, exists);
  }
}

// The first operands of products, as they lie in registers.
template <typename Shape>
using StemWeights = uint32_t[kStemDinputTiles][Shape::kLoads * 2][4];

// Copies all weights; zeros for channels of g that do not exist.
template <typename Shape>
KNNCONV_DEVICE void CopyStemWeights(const TapGemm& gemm, const StemSample& sample, char* to) {
  constexpr int kLine = Shape::kLoads * 4;
#pragma unroll 4
  for (int i = threadIdx.x; i < gemm.slots * Shape::kChannels * kLine; i += Shape::kThreads) {
    const int row = i / kLine, at = i % kLine * 8;
    CopyAsync16(to + row * Shape::kRowPitch + at * 2, sample.weight + (int64_t{row} * gemm.depth + at) * 2,
                at < gemm.depth);
  }
}

// Loads the weights of the slots from `first` on for which the tiles have room; any for those that do not exist.
template <typename Shape>
KNNCONV_DEVICE void LoadStemWeights(const TapGemm& gemm, int first, const char* from, StemWeights<Shape>& weights) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int lane = threadIdx.x % kWarpSize, line = lane % 16;
#pragma unroll
  for (int tile = 0; tile < kStemDinputTiles; ++tile) {
    int slot = first, channel;
    if (tile < kTiles.pair_tiles) {
      const int pair = tile * 8 + line % 8;
      slot += pair / max(kTiles.pairs, 1);
      channel = pair % max(kTiles.pairs, 1) * 2 + line / 8;
    } else {
      slot += (tile - kTiles.pair_tiles) * 16 + line;
      channel = kTiles.pairs * 2;
    }
    const char* const row = from + (min(slot, gemm.slots - 1) * Shape::kChannels + channel) * Shape::kRowPitch;
#pragma unroll
    for (int step = 0; step < Shape::kLoads * 2; ++step) {
      LoadMatrices<false>(weights[tile][step], row + step * 32 + lane / 16 * 16);
    }
  }
}

// Where in shared memory a lane's products of 8 rows of g go: those of the first tile of channel pairs, and of the
// first one of single channels.
struct ProductPlace {
  int pair, single;  // bytes

  template <typename Shape>
  KNNCONV_DEVICE static ProductPlace Of(const StemDinputPlan& plan, int first_slot, int unit) {
    const int lane = threadIdx.x % kWarpSize, line = lane / 4 * plan.pitch + lane % 4 * 2 + unit * 8;
    return {(first_slot * Shape::kTiles.pairs * plan.pitch + line) * 8,
            plan.singles_at + (first_slot * plan.pitch + line) * 4};
  }
  KNNCONV_DEVICE void GoOn(int units) {
    pair += units * (8 * 8);
    single += units * (8 * 4);
  }
};

// Stores a tile's products for the `slots` that exist of those in the tiles.
template <typename Shape>
KNNCONV_DEVICE void StoreProducts(const StemDinputPlan& plan, int tile, const ProductPlace& place, int slots,
                                  const float (&c)[4], char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int line = threadIdx.x % kWarpSize / 4, next = 8 * plan.pitch;  // elements to the next tile's
  if (tile < kTiles.pair_tiles) {
    if (line >= slots * kTiles.pairs - tile * 8) return;
    *reinterpret_cast<float4*>(shared + place.pair + tile * next * 8) = make_float4(c[0], c[2], c[1], c[3]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int eight = (tile - kTiles.pair_tiles) * 2 + half;
      if (line >= slots - eight * 8) continue;
      *reinterpret_cast<float2*>(shared + place.single + eight * next * 4) = make_float2(c[half * 2], c[half * 2 + 1]);
    }
  }
}

// Multiplies the warp's share of a stretch's rows, which are staged, with `weights`, those of `slots` slots from
// `first_slot` on.
template <typename Shape>
KNNCONV_DEVICE void MultiplyStretch(const StemDinputPlan& plan, const StemWeights<Shape>& weights, int first_slot,
                                    int slots, int units, const char* rows_at, char* shared) {
  using T = typename Shape::T;
  const int lane = threadIdx.x % kWarpSize, way = threadIdx.x / kWarpSize / plan.slot_warps;
  if (way >= plan.row_ways) return;
  const char* const row = rows_at + lane % 8 * Shape::kRowPitch + lane / 8 * 16;
  ProductPlace place = ProductPlace::Of<Shape>(plan, first_slot, way);
#pragma unroll 1
  for (int unit = way; unit < units; unit += plan.row_ways) {
    float c[kStemDinputTiles][4] = {};
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) {
      uint32_t b[4];
      LoadMatrices<false>(b, row + unit * 8 * Shape::kRowPitch + load * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < kStemDinputTiles; ++tile) {
          Multiply16x8<T>(c[tile], weights[tile][load * 2 + half], b[half * 2], b[half * 2 + 1]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kStemDinputTiles; ++tile) {
      StoreProducts<Shape>(plan, tile, place, slots, c[tile], shared);
    }
    place.GoOn(plan.row_ways);
  }
}

}  // namespace knnconv::gpu
