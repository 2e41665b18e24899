// The products of a stretch of slots with all rows of g (stem_dinput_kernel.h), into shared memory.
#pragma once

#include <cstdint>

#include "gpu/matrix_ops.h"
#include "gpu/stem_dinput_block.h"

namespace knnconv::gpu {

// The lane's part of 8 rows of g, of each row 8 elements of every 32; zeros where there are none.
template <typename Shape>
KNNCONV_DEVICE void LoadCotangent(const TapGemm& gemm, const StemSample& sample, int unit,
                                  uint4 (&to)[Shape::kLoads]) {
  const int lane = threadIdx.x % kWarpSize, row = unit * 8 + lane / 4, first = lane % 4 * 8;
  const char* const line = sample.g + (int64_t{row} * gemm.depth + first) * 2;
#pragma unroll
  for (int load = 0; load < Shape::kLoads; ++load) {
    const bool exists = row < gemm.source_rows && load * 32 + first < gemm.depth;
    to[load] = exists ? ReadOnly(reinterpret_cast<const uint4*>(line + load * 64)) : make_uint4(0, 0, 0, 0);
  }
}

// A thread's share of a stretch's weights, 16 bytes each.
template <typename Shape>
struct StemWeightShare {
  static constexpr int kLine = Shape::kLoads * 4, kUnits = kStemDinputTiles * 16 * kLine;
  static constexpr int kShare = (kUnits + Shape::kThreads - 1) / Shape::kThreads;
  uint4 unit[kShare];

  // The unit's row of the tiles, and the first of its channels of g.
  KNNCONV_DEVICE static int Row(int i) { return (threadIdx.x + i * Shape::kThreads) / kLine; }
  KNNCONV_DEVICE static int Depth(int i) { return (threadIdx.x + i * Shape::kThreads) % kLine * 8; }
};

// Zeros for a stretch that does not exist.
template <typename Shape>
KNNCONV_DEVICE StemWeightShare<Shape> FetchStemWeights(const TapGemm& gemm, const StemDinputPlan& plan,
                                                       const StemSample& sample, int stretch) {
  constexpr StemTiles kTiles = Shape::kTiles;
  using Share = StemWeightShare<Shape>;
  const int first = stretch * plan.stretch, slots = min(plan.stretch, gemm.slots - first);
  Share share;
#pragma unroll
  for (int i = 0; i < Share::kShare; ++i) {
    const int at = Share::Depth(i), row = Share::Row(i) % 16, tile = Share::Row(i) / 16;
    int slot, channel;
    if (tile < kTiles.pair_tiles) {
      const int pair = tile * 8 + row % 8;
      slot = pair / max(kTiles.pairs, 1);
      channel = pair % max(kTiles.pairs, 1) * 2 + row / 8;
    } else {
      slot = (tile - kTiles.pair_tiles) * 16 + row;
      channel = kTiles.pairs * 2;
    }
    const bool exists = tile < kStemDinputTiles && slot < slots && at < gemm.depth;
    const int64_t element = (int64_t{first + slot} * Shape::kChannels + channel) * gemm.depth + at;
    const uint4* const from = reinterpret_cast<const uint4*>(sample.weight + element * 2);
    share.unit[i] = exists ? ReadOnly(from) : make_uint4(0, 0, 0, 0);
  }
  return share;
}

// Stores weights by rows of tiles. Of 32 channels, a lane of the products has four pairs of neighbours of g, which it
// loads at once; here each of these pairs stands beside those of the quad's other lanes, as ldmatrix deals them.
template <typename Shape>
KNNCONV_DEVICE void StoreStemWeights(const StemWeightShare<Shape>& share, char* to) {
  using Share = StemWeightShare<Shape>;
#pragma unroll
  for (int i = 0; i < Share::kShare; ++i) {
    if (Share::Row(i) >= kStemDinputTiles * 16) continue;
    const int at = Share::Depth(i);
    char* const line = to + Share::Row(i) * kStemWeightPitch;
    uint32_t* const word = reinterpret_cast<uint32_t*>(line) + at / 32 * 16 + at / 8 % 4;
    word[0] = share.unit[i].x;
    word[4] = share.unit[i].y;
    word[8] = share.unit[i].z;
    word[12] = share.unit[i].w;
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

// Multiplies 8 rows of g, which lie in the lanes' registers, with all weights.
template <typename Shape>
KNNCONV_DEVICE void MultiplyUnit(const StemDinputPlan& plan, const StemWeights<Shape>& weights,
                                 const uint4 (&rows)[Shape::kLoads], int place, int slots, char* shared) {
  using T = typename Shape::T;
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
}

// Every other stretch goes through the warp's rows of g backward, so that the last of one, which stay in `rows`, are
// the first of the next. Calls `before_last` when all rows of g are there or on their way.
template <typename Shape, typename BeforeLast>
KNNCONV_DEVICE void MultiplyStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample,
                                    int stretch, const char* weights_at, uint4 (&rows)[Shape::kLoads], char* shared,
                                    const BeforeLast& before_last) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int count = (plan.units - warp + Shape::kWarps - 1) / Shape::kWarps;
  const int step = stretch % 2 == 0 ? Shape::kWarps : -Shape::kWarps;
  const int slots = min(plan.stretch, gemm.slots - stretch * plan.stretch);
  int unit = stretch % 2 == 0 ? warp : warp + (count - 1) * Shape::kWarps;
  const int place = lane / 4 * plan.pitch + lane % 4 * 2;
  StemWeights<Shape> weights;
  LoadStemWeights<Shape>(weights_at, weights);
#pragma unroll 1
  for (int left = count; left > 1; --left) {
    uint4 next[Shape::kLoads];
    LoadCotangent<Shape>(gemm, sample, unit + step, next);
    MultiplyUnit<Shape>(plan, weights, rows, place + unit * 8, slots, shared);
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) rows[load] = next[load];
    unit += step;
  }
  before_last();
  if (count > 0) MultiplyUnit<Shape>(plan, weights, rows, place + unit * 8, slots, shared);
}

}  // namespace knnconv::gpu
