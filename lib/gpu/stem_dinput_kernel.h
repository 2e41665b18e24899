// dinput over a table, for up to 4 channels of x, stretch by stretch (stem_dinput.h):
//
//     P[slot, m, c] = sum over o:  weight[slot, c, o] * g[b, m, o]             for the slots of a stretch
//     dx[b, n, c] += sum over the stretch's taps (m, slot) of source n:  P[slot, m, c]
//
//         weights: 3 tiles of 16 (slot, channel), in every warp's registers   8 rows of g at a time, from global memory
//         products of a stretch of slots, fp32                                shared memory
//         sums of all sources, fp32                                           shared memory
//
// A lane of the second part has one source of 32 and another of the next 32; both lists together keep it busy where one
// is short. Products lie as pairs of channels and single ones: 8 bytes of one bank in 16, then 4 of one in 32.
//
// What bounds it: reading g once a stretch, and shared memory, where rows of taps lie at random and meet the same banks.
#pragma once

#include <cstdint>

#include "gpu/matrix_ops.h"
#include "gpu/stem_dinput.h"
#include "gpu/stem_dinput_tile.h"
#include "gpu/tap_layers.h"

namespace knnconv::gpu {

// kLoads: 16-byte loads that a lane makes of a row of g, one in every 32 channels.
template <typename T_, int kChannels_, int kLoads_>
struct StemDinputShape {
  using T = T_;
  static constexpr int kChannels = kChannels_, kLoads = kLoads_, kWarps = 16, kThreads = kWarps * kWarpSize;
  static constexpr StemTiles kTiles = StemTilesOf(kChannels);
  static constexpr int kWide = kOrderedSources / 32;  // sources of a lane
};

// A block's place. The same in all threads.
struct StemSample {
  const char* g;
  const char* weight;
  const int32_t* offsets;
  const uint16_t* entries;
  const uint16_t* ends;
  int64_t out;  // element of dx
};

KNNCONV_DEVICE StemSample OpenStemSample(const TapGemm& gemm, const StemDinputPlan& plan) {
  StemSample sample;
  const uint32_t batch = static_cast<uint32_t>(gemm.batch), group = blockIdx.x / batch, b = blockIdx.x % batch;
  const GroupShape& shape = gemm.groups;
  const int64_t g = gemm.source_groups.Offset(shape, group) + b * gemm.source_rows * gemm.depth;
  sample.g = static_cast<const char*>(gemm.source) + g * 2;
  sample.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, group) * 2;
  sample.offsets = gemm.table.offsets + gemm.table.offset_groups.Offset(shape, group);
  sample.entries = plan.entries + group * plan.taps;
  sample.ends = plan.ends + int64_t{group} * plan.blocks * plan.stretches * kOrderedSources;
  sample.out = int64_t{blockIdx.x} * gemm.nodes * gemm.columns;
  return sample;
}

// Of a line of `depth` elements, the lane's 8 of every 32; zeros where there are none. Which of a step's depths they are
// does not matter, as long as they are the same of both operands.
template <typename Shape>
KNNCONV_DEVICE void LoadLine(const char* line, int depth, bool exists, uint4 (&to)[Shape::kLoads]) {
  const int first = threadIdx.x % 4 * 8;
#pragma unroll
  for (int load = 0; load < Shape::kLoads; ++load) {
    const int at = load * 32 + first;
    to[load] = exists && at < depth ? ReadOnly(reinterpret_cast<const uint4*>(line + at * 2)) : make_uint4(0, 0, 0, 0);
  }
}

template <typename Shape>
struct StemWeights {
  uint4 row[kStemDinputTiles][2][Shape::kLoads];
};

// The weights of slots [first, first + stretch), the lane's two rows of each tile.
template <typename Shape>
KNNCONV_DEVICE void LoadStemWeights(const TapGemm& gemm, const StemSample& sample, int first, int slots,
                                    StemWeights<Shape>* weights) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int row = threadIdx.x % kWarpSize / 4;
#pragma unroll
  for (int tile = 0; tile < kStemDinputTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int slot, channel;
      if (tile < kTiles.pair_tiles) {
        const int pair = tile * 8 + row;
        slot = pair / max(kTiles.pairs, 1);
        channel = pair % max(kTiles.pairs, 1) * 2 + half;
      } else {
        slot = (tile - kTiles.pair_tiles) * 16 + half * 8 + row;
        channel = kTiles.pairs * 2;
      }
      const int64_t line = int64_t{first + slot} * Shape::kChannels + channel;
      LoadLine<Shape>(sample.weight + line * gemm.depth * 2, gemm.depth, slot < slots, weights->row[tile][half]);
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void LoadCotangent(const TapGemm& gemm, const StemSample& sample, int unit,
                                  uint4 (&to)[Shape::kLoads]) {
  const int row = unit * 8 + static_cast<int>(threadIdx.x % kWarpSize) / 4;
  LoadLine<Shape>(sample.g + int64_t{row} * gemm.depth * 2, gemm.depth, row < gemm.source_rows, to);
}

// Stores a tile's products of 8 rows of g, from `row` on, for the slots that the stretch has.
template <typename Shape>
KNNCONV_DEVICE void StoreProducts(const StemDinputPlan& plan, int tile, int row, int slots, const float (&c)[4],
                                  char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int lane = threadIdx.x % kWarpSize, column = row + lane % 4 * 2;
  if (tile < kTiles.pair_tiles) {
    const int pair = tile * 8 + lane / 4;
    if (pair >= slots * kTiles.pairs) return;
    reinterpret_cast<float4*>(shared)[(pair * plan.pitch + column) / 2] = make_float4(c[0], c[2], c[1], c[3]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = (tile - kTiles.pair_tiles) * 16 + half * 8 + lane / 4;
      if (slot >= slots) continue;
      reinterpret_cast<float2*>(shared + plan.singles_at)[(slot * plan.pitch + column) / 2] =
          make_float2(c[half * 2], c[half * 2 + 1]);
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void MultiplyStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int slots,
                                    const StemWeights<Shape>& weights, uint4 (&next)[Shape::kLoads], char* shared) {
  using T = typename Shape::T;
#pragma unroll 1
  for (int unit = threadIdx.x / kWarpSize; unit < plan.units; unit += Shape::kWarps) {
    uint4 rows[Shape::kLoads];
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) rows[load] = next[load];
    LoadCotangent<Shape>(gemm, sample, unit + Shape::kWarps, next);
    float c[kStemDinputTiles][4] = {};
#pragma unroll
    for (int load = 0; load < Shape::kLoads; ++load) {
#pragma unroll
      for (int tile = 0; tile < kStemDinputTiles; ++tile) {
        const uint4 upper = weights.row[tile][0][load], lower = weights.row[tile][1][load];
        const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y};
        const uint32_t second[4] = {upper.z, lower.z, upper.w, lower.w};
        Multiply16x8<T>(c[tile], first, rows[load].x, rows[load].y);
        Multiply16x8<T>(c[tile], second, rows[load].z, rows[load].w);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kStemDinputTiles; ++tile) StoreProducts<Shape>(plan, tile, unit * 8, slots, c[tile], shared);
  }
}

// The lane's entries of one stretch, of each of its sources.
template <typename Shape>
struct StemLists {
  const uint16_t* entries;  // of the block of sources
  int begin[Shape::kWide], end[Shape::kWide];
};

template <typename Shape>
KNNCONV_DEVICE StemLists<Shape> FindLists(const StemDinputPlan& plan, const StemSample& sample, int block, int stretch) {
  StemLists<Shape> lists = {};
  if (block >= plan.blocks) return lists;
  lists.entries = sample.entries + SourceOffset(sample.offsets, int64_t{block} * kOrderedSources);
  const uint16_t* const ends = sample.ends + int64_t{block} * plan.stretches * kOrderedSources;
#pragma unroll
  for (int i = 0; i < Shape::kWide; ++i) {
    const int at = stretch * kOrderedSources + i * 32 + static_cast<int>(threadIdx.x % kWarpSize);
    lists.begin[i] = at == 0 ? 0 : ReadOnly(ends + at - 1);
    lists.end[i] = ReadOnly(ends + at);
  }
  return lists;
}

template <typename Shape>
using StemSourceSums = float[Shape::kWide][Shape::kChannels];

// Adds the products of the lists' taps.
template <typename Shape>
KNNCONV_DEVICE void AddProducts(const StemDinputPlan& plan, const StemLists<Shape>& lists, const char* shared,
                                StemSourceSums<Shape>& sums) {
  constexpr int kTaps = 2;  // of each source, whose loads go out together
  int at[Shape::kWide];
#pragma unroll
  for (int i = 0; i < Shape::kWide; ++i) at[i] = lists.begin[i];
  bool more = true;
#pragma unroll 1
  while (more) {
    int place[Shape::kWide][kTaps];
#pragma unroll
    for (int i = 0; i < Shape::kWide; ++i) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        place[i][tap] = at[i] + tap < lists.end[i] ? int{ReadOnly(lists.entries + at[i] + tap)} : -1;
      }
    }
    more = false;
#pragma unroll
    for (int i = 0; i < Shape::kWide; ++i) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        if (place[i][tap] < 0) continue;
#pragma unroll
        for (int pair = 0; pair < Shape::kTiles.pairs; ++pair) {
          const float2 product = reinterpret_cast<const float2*>(shared)[place[i][tap] + pair * plan.pitch];
          sums[i][pair * 2] += product.x;
          sums[i][pair * 2 + 1] += product.y;
        }
        if (Shape::kTiles.singles != 0) {
          sums[i][Shape::kChannels - 1] += reinterpret_cast<const float*>(shared + plan.singles_at)[place[i][tap]];
        }
      }
      at[i] += kTaps;
      more |= at[i] < lists.end[i];
    }
  }
}

// Adds a stretch's products to the sums of all sources; the last stretch's become the result.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int stretch,
                               StemLists<Shape> next, char* shared) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll 1
  for (int block = threadIdx.x / kWarpSize; block < plan.blocks; block += Shape::kWarps) {
    const StemLists<Shape> lists = next;
    next = FindLists<Shape>(plan, sample, block + Shape::kWarps, stretch);
    float* const kept = reinterpret_cast<float*>(shared + plan.sums_at) + (block * kOrderedSources + lane) * Shape::kChannels;
    StemSourceSums<Shape> sums = {};
    if (stretch > 0) {
#pragma unroll
      for (int i = 0; i < Shape::kWide; ++i) {
#pragma unroll
        for (int c = 0; c < Shape::kChannels; ++c) sums[i][c] = kept[i * 32 * Shape::kChannels + c];
      }
    }
    AddProducts<Shape>(plan, lists, shared, sums);
#pragma unroll
    for (int i = 0; i < Shape::kWide; ++i) {
      const int64_t node = int64_t{block} * kOrderedSources + i * 32 + lane;
#pragma unroll
      for (int c = 0; c < Shape::kChannels; ++c) {
        if (stretch + 1 < plan.stretches) {
          kept[i * 32 * Shape::kChannels + c] = sums[i][c];
        } else if (node < gemm.nodes) {
          StoreElement(gemm.out, gemm.out_type, sample.out + node * Shape::kChannels + c, sums[i][c]);
        }
      }
    }
  }
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemDinputKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemSample sample = OpenStemSample(gemm, plan);
    const int warp = threadIdx.x / kWarpSize;
#pragma unroll 1
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      const int first = stretch * plan.stretch, slots = min(plan.stretch, gemm.slots - first);
      {
        StemWeights<Shape> weights;
        uint4 rows[Shape::kLoads];
        LoadStemWeights<Shape>(gemm, sample, first, slots, &weights);
        LoadCotangent<Shape>(gemm, sample, warp, rows);
        __syncthreads();  // every warp is done with the last stretch's products
        MultiplyStretch<Shape>(gemm, plan, sample, slots, weights, rows, shared);
      }
      const StemLists<Shape> lists = FindLists<Shape>(plan, sample, warp, stretch);
      __syncthreads();
      AddStretch<Shape>(gemm, plan, sample, stretch, lists, shared);
    }
  }
}

}  // namespace knnconv::gpu
