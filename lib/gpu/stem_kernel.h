// Forward over a table without slots, of up to 4 channels, with whole samples in shared memory:
//
//     out[b, m, :] = round(bias + sum over taps k:  source[b, indices[m, k], :] @ weight[k])
//
//         two samples' sources, 4 channels a row       weights, in the registers' order       shared memory
//         16 rows of the result a warp, the same of both samples; a step is 4 taps            tensor cores
//
// The depth of the product is (tap, channel): a lane's four depths of a step are one tap's channels, which it reads
// with one 8-byte load from wherever the table says. Both samples share what was read of the table and of the weights.
//
// What bounds it: shared memory, where 16 rows' taps lie at random and meet the same banks, then mma.sync, then the
// instructions of staging, so that a thread stages whole rows, and eight columns of weights at a time.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/halo_block.h"
#include "gpu/lanes.h"
#include "gpu/stem.h"
#include "gpu/stem_stage.h"

namespace knnconv::gpu {

template <typename T_, int kTiles_>
struct StemShape {
  using T = T_;
  using Deal = ColumnDeal<kTiles_>;
  static constexpr int kTiles = kTiles_, kColumns = kTiles * 8, kThreads = kStemWarps * kWarpSize;
  static constexpr int kAhead = 4;  // steps whose indices are read while those before are multiplied
};

// A block's place. The same in all threads.
struct StemBlock {
  const char* source;  // of its first sample
  const char* weight;
  const float* bias;
  char* out;           // of its first sample
  const int32_t* indices;
  int first_column, samples, part;
};

template <typename Shape>
KNNCONV_DEVICE StemBlock OpenStem(const TapGemm& gemm, const StemPlan& plan) {
  StemBlock block;
  uint32_t index = blockIdx.x;
  block.part = static_cast<int>(index % plan.parts);
  index /= plan.parts;
  const int64_t sample = int64_t{index % plan.sample_pairs} * kStemSamples;
  index /= plan.sample_pairs;
  block.first_column = static_cast<int>(index % plan.column_tiles) * Shape::kColumns;
  const uint32_t group = index / plan.column_tiles;
  block.samples = static_cast<int>(min(int64_t{kStemSamples}, gemm.batch - sample));
  const GroupShape& shape = gemm.groups;
  const int64_t source = gemm.source_groups.Offset(shape, group) + sample * gemm.source_rows * gemm.depth;
  block.source = static_cast<const char*>(gemm.source) + source * ElementBytes(gemm.source_type);
  block.weight = static_cast<const char*>(gemm.weight) + gemm.weight_groups.Offset(shape, group) * 2;
  block.bias = gemm.bias == nullptr ? nullptr : gemm.bias + gemm.bias_groups.Offset(shape, group);
  block.indices = gemm.table.sources + gemm.table.source_groups.Offset(shape, group);
  const int64_t out = (group * gemm.batch + sample) * gemm.nodes * gemm.columns + block.first_column;
  block.out = static_cast<char*>(gemm.out) + out * ElementBytes(gemm.out_type);
  return block;
}

// Eight columns of a tap, of each channel.
template <typename T>
union StemColumns {
  uint4 bits;
  T column[8];
  uint16_t raw[8];
  KNNCONV_DEVICE StemColumns() : bits(make_uint4(0, 0, 0, 0)) {}
};

// Of each step and product, 8 bytes a lane: one tap's channels of one column. Neighbouring threads have a step's four
// taps, so that they store to different banks.
template <typename Shape, bool kVector>
KNNCONV_DEVICE void StageStemWeights(const TapGemm& gemm, const StemPlan& plan, const StemBlock& block, char* to) {
  using T = typename Shape::T;
  constexpr int kLine = Shape::kColumns / 8;
  static_assert(Shape::Deal::kWidth == 8, "a lane's neighbouring columns are those of a thread here");
  const T* const weight = reinterpret_cast<const T*>(block.weight);
#pragma unroll 2
  for (int i = threadIdx.x; i < plan.steps * 4 * kLine; i += Shape::kThreads) {
    const int tap = i / (4 * kLine) * 4 + i % 4, inner = i / 4 % kLine * 8, column = block.first_column + inner;
    StemColumns<T> channels[kStemChannels];
#pragma unroll
    for (int c = 0; c < kStemChannels; ++c) {
      if (tap >= gemm.slots || c >= gemm.depth || column >= gemm.columns) continue;
      const T* const from = weight + (tap * gemm.depth + c) * int64_t{gemm.columns} + column;
      if constexpr (kVector) {
        channels[c].bits = ReadOnly(reinterpret_cast<const uint4*>(from));
      } else {
        for (int e = 0; e < min(8, gemm.columns - column); ++e) channels[c].column[e] = from[e];
      }
    }
    const int position = Shape::Deal::Position(inner);
    uint2* const first = reinterpret_cast<uint2*>(to) +
                         (tap / 4 * Shape::kTiles + position / 8) * kWarpSize + position % 8 * 4 + tap % 4;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const auto pair = [&](int c) { return channels[c].raw[e] | uint32_t{channels[c + 1].raw[e]} << 16; };
      first[e / 2 * kWarpSize + e % 2 * 4] = make_uint2(pair(0), pair(2));
    }
  }
}

template <typename Shape>
using StemSums = float[kStemSamples][Shape::kTiles][4];

// A lane's way through the table: of rows 16 * tile + lane / 4 and 8 further, every fourth tap.
template <typename Shape>
class StemWalk {
 public:
  KNNCONV_DEVICE StemWalk(const TapGemm& gemm, const StemBlock& block, int tile)
      : taps_(gemm.table.columns), tap_(threadIdx.x % 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t m = min(int64_t{tile} * 16 + half * 8 + threadIdx.x % kWarpSize / 4, gemm.nodes - 1);
      row_[half] = block.indices + m * taps_;
    }
  }

  // Reads the table for the next kAhead steps.
  KNNCONV_DEVICE void Fetch(int32_t (&index)[Shape::kAhead][2]) {
#pragma unroll
    for (int ahead = 0; ahead < Shape::kAhead; ++ahead, tap_ += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) index[ahead][half] = tap_ < taps_ ? ReadOnly(row_[half] + tap_) : -1;
    }
  }

 private:
  const int32_t* row_[2];
  int taps_, tap_;
};

// A step's left operands: the channels of the taps, of both samples; what is no tap reads the zeros behind the last
// source. Sets bit i of `live` if row i of the lane's two has a tap.
KNNCONV_DEVICE void GatherStem(const TapGemm& gemm, const StemPlan& plan, const char* shared, const int32_t (&index)[2],
                               uint32_t (&a)[kStemSamples][4], uint32_t* live) {
  const uint32_t sources = static_cast<uint32_t>(gemm.source_rows);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t source = min(static_cast<uint32_t>(index[half]), sources);
    *live |= source < sources ? 1u << half : 0u;
    const char* const at = shared + plan.source_at + source * (kStemChannels * 2);
#pragma unroll
    for (int sample = 0; sample < kStemSamples; ++sample) {
      const uint2 channels = *reinterpret_cast<const uint2*>(at + sample * plan.sample_bytes);
      a[sample][half] = channels.x;
      a[sample][2 + half] = channels.y;
    }
  }
}

// Rows 16 * tile + lane / 4 and 8 further, of both samples. `live`: bit i, whether row i of the lane's two has a tap.
// A step's taps are gathered while the one before is multiplied, and the table is read further ahead.
template <typename Shape>
KNNCONV_DEVICE void MultiplyStem(const TapGemm& gemm, const StemPlan& plan, const StemBlock& block, const char* shared,
                                 int tile, StemSums<Shape>& sums, uint32_t* live) {
  const uint2* weight = reinterpret_cast<const uint2*>(shared + plan.weight_at) + threadIdx.x % kWarpSize;
  StemWalk<Shape> walk(gemm, block, tile);
  int32_t next[Shape::kAhead][2];
  uint32_t a[kStemSamples][4];
  walk.Fetch(next);
  GatherStem(gemm, plan, shared, next[0], a, live);
#pragma unroll 1
  for (int first = 0; first < plan.steps; first += Shape::kAhead) {
    int32_t index[Shape::kAhead][2];
#pragma unroll
    for (int ahead = 0; ahead < Shape::kAhead; ++ahead) {
      index[ahead][0] = next[ahead][0];
      index[ahead][1] = next[ahead][1];
    }
    walk.Fetch(next);
#pragma unroll
    for (int ahead = 0; ahead < Shape::kAhead; ++ahead) {
      if (first + ahead >= plan.steps) break;
      uint32_t following[kStemSamples][4] = {};
      if (first + ahead + 1 < plan.steps) {
        GatherStem(gemm, plan, shared, ahead + 1 < Shape::kAhead ? index[ahead + 1] : next[0], following, live);
      }
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) {
        const uint2 b = weight[n * kWarpSize];
#pragma unroll
        for (int sample = 0; sample < kStemSamples; ++sample) {
          Multiply16x8<typename Shape::T>(sums[sample][n], a[sample], b.x, b.y);
        }
      }
      weight += Shape::kTiles * kWarpSize;
#pragma unroll
      for (int sample = 0; sample < kStemSamples; ++sample) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[sample][i] = following[sample][i];
      }
    }
  }
  // The quad's lanes have the taps of the same rows.
  *live = (GroupBallot((*live & 1) != 0, 4) != 0 ? 1u : 0u) | (GroupBallot((*live & 2) != 0, 4) != 0 ? 2u : 0u);
}

template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreStem(const TapGemm& gemm, const StemBlock& block, int tile, const float* bias, uint32_t live,
                              const StemSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kWidth = Deal::kWidth;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int group = 0; group < Deal::kGroups; ++group) {
    const int column = group * 8 * Deal::kGroup + lane % 4 * kWidth, count = gemm.columns - block.first_column - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t m = int64_t{tile} * 16 + half * 8 + lane / 4;
      const bool zero = gemm.zero_empty_rows && (live >> half & 1) == 0;
      if (m >= gemm.nodes) continue;
#pragma unroll
      for (int sample = 0; sample < kStemSamples; ++sample) {
        if (sample >= block.samples) continue;
        float value[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          const float sum = sums[sample][group * Deal::kGroup + e / 2][half * 2 + e % 2];
          value[e] = zero ? 0.0f : sum + bias[column + e];
        }
        Out* const out = reinterpret_cast<Out*>(block.out) + (sample * gemm.nodes + m) * gemm.columns + column;
        StoreColumns(out, value, count);
      }
    }
  }
}

// Part `part` of `parts` of what lies from `from` on.
template <typename Shape>
KNNCONV_DEVICE void PrefetchPart(const void* from, int64_t bytes, int part, int parts) {
  constexpr int kLine = 128;
  for (int64_t at = (int64_t{part} * Shape::kThreads + threadIdx.x) * kLine; at < bytes;
       at += int64_t{parts} * Shape::kThreads * kLine) {
    PrefetchLine(static_cast<const char*>(from) + at);
  }
}

// Brings near at once all that the block is going to read, one after the other. Each block helps with what all have in
// common.
template <typename Shape>
KNNCONV_DEVICE void PrefetchStem(const TapGemm& gemm, const StemBlock& block) {
  constexpr int kHelpers = 16;
  const int helper = static_cast<int>(blockIdx.x % kHelpers);
  const int64_t source_bytes = block.samples * gemm.source_rows * gemm.depth * ElementBytes(gemm.source_type);
  PrefetchPart<Shape>(block.source, source_bytes, 0, 1);
  PrefetchPart<Shape>(block.weight, int64_t{gemm.slots} * gemm.depth * gemm.columns * 2, helper, kHelpers);
  PrefetchPart<Shape>(block.indices, gemm.nodes * gemm.table.columns * 4, helper, kHelpers);
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER StemPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    using T = typename Shape::T;
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemBlock block = OpenStem<Shape>(gemm, plan);
    PrefetchStem<Shape>(gemm, block);
    float* const bias = reinterpret_cast<float*>(shared);
    for (int i = threadIdx.x; i < Shape::kColumns; i += Shape::kThreads) {
      const int column = block.first_column + i;
      bias[i] = block.bias != nullptr && column < gemm.columns ? block.bias[column] : 0.0f;
    }
    if (plan.vector_weight) {
      StageStemWeights<Shape, true>(gemm, plan, block, shared + plan.weight_at);
    } else {
      StageStemWeights<Shape, false>(gemm, plan, block, shared + plan.weight_at);
    }
    const int sources = static_cast<int>(gemm.source_rows);
    for (int sample = 0; sample < kStemSamples; ++sample) {
      StageStemSample<T>(block.source, gemm.source_type, sample, sources, sample < block.samples ? sources : 0,
                         sources + 1, gemm.depth, Shape::kThreads,
                         shared + plan.source_at + sample * plan.sample_bytes);
    }
    __syncthreads();
#pragma unroll 1
    for (int tile = block.part * kStemWarps + threadIdx.x / kWarpSize; tile < plan.row_tiles;
         tile += plan.parts * kStemWarps) {
      StemSums<Shape> sums = {};
      uint32_t live = 0;
      MultiplyStem<Shape>(gemm, plan, block, shared, tile, sums, &live);
      if (gemm.out_type == Element::kF32) {
        StoreStem<Shape, float>(gemm, block, tile, bias, live, sums);
      } else if (gemm.out_type == Element::kF16) {
        StoreStem<Shape, Half>(gemm, block, tile, bias, live, sums);
      } else {
        StoreStem<Shape, BFloat>(gemm, block, tile, bias, live, sums);
      }
    }
  }
}

}  // namespace knnconv::gpu
