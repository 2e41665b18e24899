// dinput over a table, for up to 4 channels of x, stretch by stretch (stem_dinput.h):
//
//     P[slot, m, c] = sum over o:  weight[slot, c, o] * g[b, m, o]             for the slots of a stretch
//     dx[b, n, c] += sum over the stretch's taps (m, slot) of source n:  P[slot, m, c]
//
//         weights: 3 tiles of 16 (slot, channel), in every warp's registers   8 rows of g at a time, from global memory
//         products of a stretch of slots, fp32                                shared memory, with the next weights
//         sums of all sources, fp32                                           shared memory
//
// A lane of the second part has two neighbouring sources; both lists together keep it busy where one is short, and a
// long list is the whole warp's. Products lie as pairs of channels and single ones: 8 bytes of one bank in 16, then 4 of
// one in 32.
//
// What bounds it: reading g once a stretch, and shared memory, where rows of taps lie at random and meet the same banks.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
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
};

// A block's place. The same in all threads.
struct StemSample {
  const char* g;
  const char* weight;
  const uint32_t* ends;
  const uint32_t* pairs;
  int64_t out;  // element of dx
};

KNNCONV_DEVICE StemSample OpenStemSample(const TapGemm& gemm, const StemDinputPlan& plan) {
  StemSample sample;
  const uint32_t batch = static_cast<uint32_t>(gemm.batch), group = blockIdx.x / batch, b = blockIdx.x % batch;
  const GroupShape& shape = gemm.groups;
  const int64_t g = gemm.source_groups.Offset(shape, group) + b * gemm.source_rows * gemm.depth;
  sample.g = static_cast<const char*>(gemm.source) + g * 2;
  sample.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, group) * 2;
  sample.ends = plan.ends + int64_t{group} * plan.blocks * plan.block_ends;
  sample.pairs = plan.pairs + group * plan.group_pairs;
  sample.out = int64_t{blockIdx.x} * gemm.nodes * gemm.columns;
  return sample;
}

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

// The weights of slots [first, first + slots), by rows of tiles. Of 32 channels, a lane of the products has four pairs of
// neighbours of g, which it loads at once; here each of these pairs stands beside those of the quad's other lanes, as
// ldmatrix deals them.
template <typename Shape>
KNNCONV_DEVICE void StageStemWeights(const TapGemm& gemm, const StemSample& sample, int first, int slots, char* to) {
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
      const int64_t line = (int64_t{first + slot} * Shape::kChannels + channel) * gemm.depth;
      unit = ReadOnly(reinterpret_cast<const uint4*>(sample.weight + (line + at) * 2));
    }
    uint32_t* const word = reinterpret_cast<uint32_t*>(to + (tile * 16 + row) * kStemWeightPitch) + at / 32 * 16 + at / 8 % 4;
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

// Stores a tile's products of 8 rows of g for the slots that the stretch has. `place` is that of the lane's first row of g
// in the tile's first line of products.
template <typename Shape>
KNNCONV_DEVICE void StoreProducts(const StemDinputPlan& plan, int tile, int place, int slots, const float (&c)[4],
                                  char* shared) {
  constexpr StemTiles kTiles = Shape::kTiles;
  const int line = threadIdx.x % kWarpSize / 4;
  if (tile < kTiles.pair_tiles) {
    if (line >= slots * kTiles.pairs - tile * 8) return;
    reinterpret_cast<float4*>(shared)[(place + tile * 8 * plan.pitch) / 2] = make_float4(c[0], c[2], c[1], c[3]);
  } else {
    float2* const to = reinterpret_cast<float2*>(shared + plan.singles_at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = (tile - kTiles.pair_tiles) * 16 + half * 8;
      if (line < slots - first) to[(place + first * plan.pitch) / 2] = make_float2(c[half * 2], c[half * 2 + 1]);
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

template <typename Shape>
KNNCONV_DEVICE void StoreSums(const TapGemm& gemm, const StemSample& sample, int64_t node,
                              const StemSourceSums<Shape>& sums) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (node + i >= gemm.nodes) continue;
#pragma unroll
    for (int c = 0; c < Shape::kChannels; ++c) {
      StoreElement(gemm.out, gemm.out_type, sample.out + (node + i) * Shape::kChannels + c, sums[i][c]);
    }
  }
}

// Adds a stretch's products to the sums of all sources; the last stretch's become the result.
template <typename Shape>
KNNCONV_DEVICE void AddStretch(const TapGemm& gemm, const StemDinputPlan& plan, const StemSample& sample, int stretch,
                               char* shared) {
  constexpr int kChannels = Shape::kChannels;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const uint32_t nowhere = static_cast<uint32_t>(plan.nowhere) * 0x10001u;
  // One block's products are added while the next one's first pairs and the lists of the one after it are loaded.
  const int step = Shape::kWarps * plan.block_ends;
  const uint32_t* ends = sample.ends + warp * plan.block_ends + kFirstEnd + stretch * kOrderedSources + lane * 2;
  StemLists lists = FindLists(ends, warp < plan.blocks);
  StemLists next = FindLists(ends += step, warp + Shape::kWarps < plan.blocks);
  StemCursors cursors = OpenCursors(sample.pairs, lists, nowhere);
  __syncthreads();  // all products are there
#pragma unroll 1
  for (int block = warp; block < plan.blocks; block += Shape::kWarps) {
    const StemLists current = lists;
    const StemCursors first = cursors;
    lists = next;
    cursors = OpenCursors(sample.pairs, lists, nowhere);
    next = FindLists(ends += step, block + 2 * Shape::kWarps < plan.blocks);

    const int node = block * kOrderedSources + lane * 2;
    float2* const kept = reinterpret_cast<float2*>(shared + plan.sums_at) + node / 2 * kChannels;
    StemSourceSums<Shape> sums = {};
#pragma unroll
    for (int c = 0; c < kChannels && stretch > 0; ++c) {
      const float2 two = kept[c];
      sums[c * 2 / kChannels][c * 2 % kChannels] = two.x;
      sums[(c * 2 + 1) / kChannels][(c * 2 + 1) % kChannels] = two.y;
    }
    AddShortLists<Shape>(plan, first, nowhere, shared, sums);
    if (AnyLane(IsLong(current, 0) || IsLong(current, 1))) {
      AddLongLists<Shape>(plan, sample.pairs, current, shared, sums);
    }
    if (stretch + 1 == plan.stretches) {
      StoreSums<Shape>(gemm, sample, node, sums);
      continue;
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      kept[c] = make_float2(sums[c * 2 / kChannels][c * 2 % kChannels],
                            sums[(c * 2 + 1) / kChannels][(c * 2 + 1) % kChannels]);
    }
  }
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemDinputKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemDinputPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemSample sample = OpenStemSample(gemm, plan);
    char* const weights_at = shared + plan.weights_at;
    StageStemWeights<Shape>(gemm, sample, 0, min(plan.stretch, gemm.slots), weights_at);
    if (threadIdx.x == 0) {
#pragma unroll
      for (int pair = 0; pair < Shape::kTiles.pairs; ++pair) {
        reinterpret_cast<float2*>(shared)[plan.nowhere + pair * plan.pitch] = make_float2(0, 0);
      }
      if (Shape::kTiles.singles != 0) reinterpret_cast<float*>(shared + plan.singles_at)[plan.nowhere] = 0.0f;
    }
#pragma unroll 1
    for (int stretch = 0; stretch < plan.stretches; ++stretch) {
      const int first = stretch * plan.stretch, next = first + plan.stretch;
      MultiplyStretch<Shape>(gemm, plan, sample, weights_at, min(plan.stretch, gemm.slots - first), shared);
      AddStretch<Shape>(gemm, plan, sample, stretch, shared);
      if (next < gemm.slots) StageStemWeights<Shape>(gemm, sample, next, min(plan.stretch, gemm.slots - next), weights_at);
    }
  }
}

}  // namespace knnconv::gpu
