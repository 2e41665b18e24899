// The products of a stretch of slots with all rows of g (stem_dinput_kernel.h), into shared memory.
#pragma once

#include <cstdint>

#include "gpu/matrix_ops.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// The lane's part of row `row` of g, 8 elements of every 32 from `line` on; zeros where there are none.
template <typename Shape>
KNNCONV_DEVICE void LoadCotangent(const TapGemm& gemm, const char* line, int row, uint4 (&to)[Shape::kLoads]) {
  const int first = threadIdx.x % 4 * 8;
#pragma unroll
  for (int load = 0; load < Shape::kLoads; ++load) {
    const bool exists = row < gemm.source_rows && load * 32 + first < gemm.depth;
    to[load] = exists ? ReadOnly(reinterpret_cast<const uint4*>(line + load * 64)) : make_uint4(0, 0, 0, 0);
  }
}

// A stretch's weights, by rows of tiles; none of a stretch that does not exist. Of 32 channels, a lane of the products
// has four pairs of neighbours of g, which it loads at once; here each of these pairs stands beside those of the quad's
// other lanes, as ldmatrix deals them.
template <typename Shape>
KNNCONV_DEVICE void StageStemWeights(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample,
                                     int stretch, char* to) {
  if (stretch >= plan.stretches) return;
  const int first = stretch * plan.stretch, slots = min(plan.stretch, gemm.slots - first);
  constexpr StemTiles kTiles = Shape::kTiles;
  constexpr int kLine = Shape::kLoads * 4, kUnits = kStemDinputTiles * 16 * kLine;
  for (int i = threadIdx.x; i < kUnits; i += Shape::kThreads) {
    const int at = i % kLine * 8, row = i / kLine % 16, tile = i / kLine / 16;
    int slot, channel;
    if (tile < kTiles.pair_tiles) {
      const int pair = tile * 8 + row % 8;
      slot = pair / max(kTiles.pairs, 1);
      channel = pair % max(kTiles.pairs, 1) * 2 + row / 8;
    } else {
      slot = (tile - kTiles.pair_tiles) * 16 + row;
      channel = kTiles.pairs * 2;
    }
    uint4 unit = make_uint4(0, 0, 0, 0);
    if (slot < slots && at < gemm.depth) {
      const int64_t element = (int64_t{first + slot} * Shape::kChannels + channel) * gemm.depth + at;
      unit = ReadOnly(reinterpret_cast<const uint4*>(sample.weight + element * 2));
    }
    char* const line = to + (tile * 16 + row) * kStemWeightPitch;
    uint32_t* const word = reinterpret_cast<uint32_t*>(line) + at / 32 * 16 + at / 8 % 4;
    word[0] = unit.x;
    word[4] = unit.y;
    word[8] = unit.z;
    word[12] = unit.w;
  }
}

// The first operands of products, as they lie in registers.
template <typename Shape>
using StemWeights = uint32_t[kStemDinputTiles][Shape::kLoads * 2][4];

template <typename Shape>
KNNCONV_DEVICE void LoadStemWeights(const char* from, StemWeights<Shape>& weights) {
  const int lane = threadIdx.x % kWarpSize;
  const char* const row = from + lane % 16 * kStemWeightPitch + lane / 16 * 16;
#pragma unroll
  for (int tile = 0; tile < kStemDinputTiles; ++tile) {
#pragma unroll
    for (int step = 0; step < Shape::kLoads * 2; ++step) {
      LoadMatrices<false>(weights[tile][step], row + tile * 16 * kStemWeightPitch + step * 32);
    }
  }
}

// Stores a tile's products of 8 rows of g for the slots that the stretch has. `place` is that of the lane's first row
// of g in the tile's first line of products.
template <typename Shape>
KNNCONV_DEVICE void StoreProducts(const StemDinputPlan& plan, int tile, int place, int slots, const float (&c)[4],
                                  char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int line = threadIdx.x % kWarpSize / 4;
  if (tile < kTiles.pair_tiles) {
    if (line >= slots * kTiles.pairs - tile * 8) return;
    char* const to = shared + (place + tile * 8 * plan.pitch) * 8;
    *reinterpret_cast<float4*>(to) = make_float4(c[0], c[2], c[1], c[3]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = (tile - kTiles.pair_tiles) * 16 + half * 8;
      if (line >= slots - first) continue;
      char* const to = shared + plan.singles_at + (place + first * plan.pitch) * 4;
      *reinterpret_cast<float2*>(to) = make_float2(c[half * 2], c[half * 2 + 1]);
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void MultiplyStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample,
                                    const char* weights_at, int slots, char* shared) {
  using T = typename Shape::T;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int row = warp * 8 + lane / 4, place = lane / 4 * plan.pitch + warp * 8 + lane % 4 * 2;
  const char* line = sample.g + (int64_t{row} * gemm.depth + lane % 4 * 8) * 2;
  uint4 next[Shape::kLoads];
  LoadCotangent<Shape>(gemm, line, row, next);
  __syncthreads();  // weights are there, and every warp is done with the last stretch's products
  StemWeights<Shape> weights;
  LoadStemWeights<Shape>(weights_at, weights);
#pragma unroll 1
  for (int unit = warp; unit < plan.units; unit += Shape::kWarps) {
    uint4 rows[Shape::kLoads];
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) rows[load] = next[load];
    row += Shape::kWarps * 8;
    line += Shape::kWarps * 16 * gemm.depth;
    LoadCotangent<Shape>(gemm, line, row, next);
    float c[kStemDinputTiles][4] = {};
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) {
#pragma unroll
      for (int tile = 0; tile < kStemDinputTiles; ++tile) {
        Multiply16x8<T>(c[tile], weights[tile][load * 2], rows[load].x, rows[load].y);
      }
#pragma unroll
      for (int tile = 0; tile < kStemDinputTiles; ++tile) {
        Multiply16x8<T>(c[tile], weights[tile][load * 2 + 1], rows[load].z, rows[load].w);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kStemDinputTiles; ++tile) StoreProducts<Shape>(plan, tile, place, slots, c[tile], shared);
    place += Shape::kWarps * 8;
  }
}

}  // namespace knnconv::gpu
