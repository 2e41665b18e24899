// Weight gradients over a table without slots, of up to 4 channels, with whole samples of x in shared memory:
//
//     dw[v, c, o] = sum over b, m:  x[b, indices[m, v], c] * g[b, m, o]
//     db[o] = sum over b, m:  g[b, m, o]
//
//         rows: 16 of o a tile             columns: 8 slots, a tile for each channel
//         [ g's rows, staged, transposed ]  @  [ x's rows by the table ]         depth: 16 rows m of a sample a step
//
// A lane has one slot of its warp's eight and four rows of a step: it reads the taps' rows of x, 8 bytes each, from
// wherever the table says, and their channels are its part of the right operands. Nothing of the gathered matrix is
// staged, and no product is of a fourth channel that x lacks. A warp holds dw of its slots and all columns. Ways of
// warps with the same slots share the steps of the samples that a block computes together; their sums are added at the
// end. Where db is wanted, it is one slot more, whose taps read ones.
//
// What bounds it: shared memory, where a step's taps lie at random and meet the same banks, and where every warp reads
// all of g.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_taps.h"
#include "gpu/matrix_ops.h"
#include "gpu/stem_dweight.h"
#include "gpu/stem_stage.h"

namespace knnconv::gpu {

template <typename T_, int kTiles_, int kChannels_>
struct StemDweightShape {
  using T = T_;
  static constexpr int kTiles = kTiles_, kChannels = kChannels_, kColumns = kTiles * 16;
  static constexpr int kThreads = kStemDweightWarps * kWarpSize, kPitch = StemCotangentPitch(kColumns);
  static constexpr int kSums = kTiles * kChannels * 4;  // of a lane
};

// A block's place, and the warp's. Slots are numbered with that of db.
struct StemSlice {
  const char* x;
  const char* g;
  const int32_t* indices;
  int first_slot, first_column;
  uint32_t number;  // (group, slice)
  int64_t sample;   // the block's first
  int samples;      // of the block
  int way;
};

template <typename Shape>
KNNCONV_DEVICE StemSlice OpenStemSlice(const Dweight& dweight, const ColumnTaps& taps, const StemDweightPlan& plan) {
  StemSlice slice;
  const int warp = threadIdx.x / kWarpSize;
  uint32_t index = blockIdx.x;
  slice.first_column = static_cast<int>(index % plan.column_tiles) * Shape::kColumns;
  index /= plan.column_tiles;
  slice.first_slot = (static_cast<int>(index % plan.row_tiles) * plan.slot_warps + warp % plan.slot_warps) * kStemSlots;
  slice.way = warp / plan.slot_warps;
  index /= plan.row_tiles;
  slice.number = index;
  slice.sample = int64_t{index % plan.slices} * plan.samples;
  slice.samples = static_cast<int>(min(int64_t{plan.samples}, dweight.batch - slice.sample));
  const uint32_t group = index / plan.slices;
  const GroupShape& shape = dweight.shapes.groups;
  slice.x = static_cast<const char*>(dweight.x) + dweight.x_groups.Offset(shape, group) * ElementBytes(dweight.x_type);
  slice.g = static_cast<const char*>(dweight.g) + (dweight.g_groups.Offset(shape, group) + slice.first_column) * 2;
  slice.indices = taps.table.indices + taps.index_groups.Offset(shape, group);
  return slice;
}

// Copies rows of g from `row` on, of the block's samples; those that do not exist are zero.
template <typename Shape>
KNNCONV_DEVICE void StageStemCotangent(const Dweight& dweight, const ColumnTaps& taps, const StemDweightPlan& plan,
                                       const StemSlice& slice, int row, char* to) {
  constexpr int kLine = Shape::kColumns / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < plan.samples * kStemPositions * kLine; i += Shape::kThreads) {
    const int unit = i % kLine, line = i / kLine, position = line % kStemPositions, which = line / kStemPositions;
    const bool exists = which < slice.samples && row + position < taps.table.outputs &&
                        slice.first_column + unit * 8 < dweight.columns;
    const int64_t at = (slice.sample + which) * taps.table.outputs + row + position;
    CopyAsync16(to + line * Shape::kPitch + unit * 16, slice.g + (at * dweight.columns + unit * 8) * 2, exists);
  }
}

// The lane's way through the table: its slot's taps of rows 2t, 2t + 1, 2t + 8 and 2t + 9 of a step, t = lane % 4.
class StemTaps {
 public:
  KNNCONV_DEVICE StemTaps(const NeighborTable& table, const StemSlice& slice, bool has_bias, int source_at)
      : table_(table), source_at_(source_at) {
    const int lane = threadIdx.x % kWarpSize, slot = slice.first_slot + lane / 4;
    column_ = slot < table.neighbours ? slice.indices + slot : nullptr;
    row_ = lane % 4 * 2;
    without_ = has_bias && slot == table.neighbours ? kStemOnesAt : kStemZerosAt;
  }

  // Reads the table for the step whose first row is `row`.
  KNNCONV_DEVICE void Fetch(int row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = row + row_ + i / 2 * 8 + i % 2;
      index_[i] = column_ != nullptr && m < table_.outputs ? ReadOnly(column_ + int64_t{m} * table_.neighbours) : -1;
    }
  }

  // The channels of the taps that were fetched.
  KNNCONV_DEVICE void Gather(const char* shared, uint2 (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = IsBelow(index_[i], table_.sources) ? source_at_ + index_[i] * (kStemChannels * 2) : without_;
      to[i] = *reinterpret_cast<const uint2*>(shared + at);
    }
  }

 private:
  const NeighborTable& table_;
  const int32_t* column_;
  int row_, source_at_, without_;
  int32_t index_[4];
};

// Of each channel, the pairs of neighbouring rows' elements.
template <int kChannels>
KNNCONV_DEVICE void PairRows(const uint2 (&rows)[4], uint32_t (&pairs)[kChannels][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 &even = rows[half * 2], &odd = rows[half * 2 + 1];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const uint32_t first = c < 2 ? even.x : even.y, second = c < 2 ? odd.x : odd.y;
      pairs[c][half] = c % 2 == 0 ? (first & 0xffff) | second << 16 : first >> 16 | (second & 0xffff0000u);
    }
  }
}

template <typename Shape>
using StemDweightSums = float[Shape::kTiles][Shape::kChannels][4];

// Adds the sums of all ways to the first one's, by halves. All threads call; `shared` is free.
template <typename Shape>
KNNCONV_DEVICE void AddWays(const StemDweightPlan& plan, int way, char* shared, StemDweightSums<Shape>& sums) {
  const int pitch = plan.slot_warps * kWarpSize, lane = threadIdx.x % pitch;
#pragma unroll 1
  for (int left = kStemDweightWarps / plan.slot_warps / 2; left > 0; left /= 2) {
    __syncthreads();
    float* const room = reinterpret_cast<float*>(shared) + way % left * pitch * Shape::kSums + lane;
    if (way >= left && way < 2 * left) {
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        room[i * pitch] = sums[i / 4 / Shape::kChannels][i / 4 % Shape::kChannels][i % 4];
      }
    }
    __syncthreads();
    if (way >= left) continue;
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      sums[i / 4 / Shape::kChannels][i / 4 % Shape::kChannels][i % 4] += room[i * pitch];
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void StoreStemSums(const Dweight& dweight, const StemDweightPlan& plan, const StemSlice& slice,
                                  const StemDweightSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize, column = slice.first_column + lane / 4;
  float* const weight = dweight.partials + int64_t{slice.number} * dweight.slots * dweight.channels * dweight.columns;
  const bool has_bias = plan.bias_partials != nullptr;
  float* const bias = has_bias ? plan.bias_partials + int64_t{slice.number} * dweight.columns : nullptr;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int slot = slice.first_slot + lane % 4 * 2 + i;
#pragma unroll
    for (int c = 0; c < Shape::kChannels; ++c) {
      const bool in_weight = slot < dweight.slots && c < dweight.channels;
      if (!in_weight && (slot != dweight.slots || c > 0 || !has_bias)) continue;
      float* const out = in_weight ? weight + (int64_t{slot} * dweight.channels + c) * dweight.columns : bias;
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int o = column + tile * 16 + half * 8;
          if (o < dweight.columns) out[o] = sums[tile][c][half * 2 + i];
        }
      }
    }
  }
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, 1)
    StemDweightKernel(const KNNCONV_PARAMETER Dweight dweight, const KNNCONV_PARAMETER ColumnTaps taps,
                      const KNNCONV_PARAMETER StemDweightPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    using T = typename Shape::T;
    KNNCONV_DYNAMIC_SHARED(shared);
    const StemSlice slice = OpenStemSlice<Shape>(dweight, taps, plan);
    const int outputs = taps.table.outputs;
    const auto copy = [&](int row, int stage) {
      if (row < outputs) {
        StageStemCotangent<Shape>(dweight, taps, plan, slice, row, shared + plan.stage_at + stage * plan.stage_bytes);
      }
      CommitCopies();
    };
    copy(0, 0);

    // The warp's sample, and its steps of that.
    const int which = slice.way % plan.samples, stride = plan.step_ways * 16;
    int row = slice.way / plan.samples * 16;
    StemTaps walk(taps.table, slice, plan.bias_partials != nullptr, plan.source_at + which * plan.sample_bytes);
    walk.Fetch(row);
    if (threadIdx.x < kStemSourceAt / 4) {
      const T value = FromFloat<T>(threadIdx.x * 4 < kStemOnesAt ? 0.0f : 1.0f);
      reinterpret_cast<T*>(shared)[threadIdx.x * 2] = reinterpret_cast<T*>(shared)[threadIdx.x * 2 + 1] = value;
    }
    for (int i = 0; i < slice.samples; ++i) {
      const int sources = taps.table.sources;
      StageStemSample<T>(slice.x, dweight.x_type, slice.sample + i, sources, sources, sources, dweight.channels,
                         Shape::kThreads, shared + plan.source_at + i * plan.sample_bytes);
    }
    const int lane = threadIdx.x % kWarpSize, matrix = lane / 8;
    const int own_row = which * kStemPositions + matrix / 2 * 8 + lane % 8;
    const char* const own_tile = shared + plan.stage_at + own_row * Shape::kPitch + matrix % 2 * 16;

    StemDweightSums<Shape> sums = {};
    int stage = 0;
#pragma unroll 1
    for (int first = 0; first < outputs; first += kStemPositions, stage ^= 1) {
      WaitForCopies<0>();
      __syncthreads();  // also, every warp is done with the other stage
      copy(first + kStemPositions, stage ^ 1);
      if (which >= slice.samples) continue;
      const char* const staged = own_tile + stage * plan.stage_bytes - first * Shape::kPitch;
#pragma unroll 1
      for (const int end = min(first + kStemPositions, outputs); row < end; row += stride) {
        uint2 rows[4];
        walk.Gather(shared, rows);
        walk.Fetch(row + stride);
        uint32_t b[Shape::kChannels][2];
        PairRows<Shape::kChannels>(rows, b);
        const char* const tile_at = staged + row * Shape::kPitch;
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          uint32_t a[4];
          LoadMatrices<true>(a, tile_at + tile * 32);
#pragma unroll
          for (int c = 0; c < Shape::kChannels; ++c) Multiply16x8<T>(sums[tile][c], a, b[c][0], b[c][1]);
        }
      }
    }
    AddWays<Shape>(plan, slice.way, shared, sums);
    if (slice.way == 0) StoreStemSums<Shape>(dweight, plan, slice, sums);
  }
}

}  // namespace knnconv::gpu
