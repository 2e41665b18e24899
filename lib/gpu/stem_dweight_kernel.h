// Weight gradients over a table without slots, of up to 4 channels, with whole samples of x in shared memory:
//
//     dw[v, c, o] = sum over b, m:  x[b, indices[m, v], c] * g[b, m, o]
//     db[o] = sum over b, m:  g[b, m, o]
//
//         rows (slot, channel of 8)          columns
//         [ x's rows by the table ]  @  [ g's rows, staged ]        depth: 16 rows m of a sample a step
//
// A row of x has 16 bytes, so that ldmatrix reads it from wherever the table says and transposes it: two slots make a
// unit of 16 rows. A warp holds a few units of all columns; warps share the slots, and every warp runs over all rows of
// g. Samples that a block computes together share what is read of the table; they are the block's slice of the sum.
//
// What bounds it: mma.sync, of whose rows 5 of 8 are channels that 3-channel sources lack.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_taps.h"
#include "gpu/halo_dweight_sums.h"
#include "gpu/stem.h"
#include "gpu/stem_dweight.h"
#include "gpu/stem_stage.h"

namespace knnconv::gpu {

template <typename T_, int kTiles_>
struct StemDweightShape {
  using T = T_;
  static constexpr int kTiles = kTiles_, kUnits = StemUnits(kTiles), kColumns = kTiles * 8;
  static constexpr int kThreads = kStemWarps * kWarpSize;
};

// A block's place. The same in all threads.
struct StemSlice {
  const char* x;
  const char* g;
  const int32_t* indices;
  int first_slot, first_column;
  uint32_t slice, number;  // number: (group, slice)
};

template <typename Shape>
KNNCONV_DEVICE StemSlice OpenStemSlice(const Dweight& dweight, const ColumnTaps& taps, const StemDweightPlan& plan) {
  StemSlice slice;
  uint32_t index = blockIdx.x;
  slice.first_column = static_cast<int>(index % plan.column_tiles) * Shape::kColumns;
  index /= plan.column_tiles;
  slice.first_slot = static_cast<int>(index % plan.row_tiles) * kStemWarps * Shape::kUnits * 2;
  index /= plan.row_tiles;
  slice.number = index;
  slice.slice = index % plan.slices;
  const uint32_t group = index / plan.slices;
  const GroupShape& shape = dweight.shapes.groups;
  slice.x = static_cast<const char*>(dweight.x) + dweight.x_groups.Offset(shape, group) * ElementBytes(dweight.x_type);
  slice.g = static_cast<const char*>(dweight.g) + (dweight.g_groups.Offset(shape, group) + slice.first_column) * 2;
  slice.indices = taps.table.indices + taps.index_groups.Offset(shape, group);
  return slice;
}

// Rows of g from `row` on, of `samples` samples from `sample` on; those that do not exist are zero.
template <typename Shape>
KNNCONV_DEVICE void StageStemCotangent(const Dweight& dweight, const ColumnTaps& taps, const StemDweightPlan& plan,
                                       const StemSlice& slice, int64_t sample, int samples, int row, char* to) {
  constexpr int kLine = Shape::kColumns / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < plan.samples * kStemPositions * kLine; i += Shape::kThreads) {
    const int unit = i % kLine, position = i / kLine % kStemPositions, which = i / kLine / kStemPositions;
    const bool exists = which < samples && row + position < taps.table.outputs &&
                        slice.first_column + unit * 8 < dweight.columns;
    const int64_t at = (sample + which) * taps.table.outputs + row + position;
    CopyAsync16(to + which * plan.cotangent_bytes + position * plan.cotangent_pitch + unit * 16,
                slice.g + (at * dweight.columns + unit * 8) * 2, exists);
  }
}

// Sums of the columns of g's staged rows: a thread has two neighbouring columns and some of the rows.
template <typename Shape>
class StemColumns {
  static constexpr int kPairs = Shape::kColumns / 2, kParts = Shape::kThreads / kPairs;

 public:
  KNNCONV_DEVICE void Add(const char* tile, int pitch) {
    using T = typename Shape::T;
    if (part_ >= kParts) return;
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int row = part_; row < kStemPositions; row += kParts) {
      const T* const pair = reinterpret_cast<const T*>(tile + row * pitch) + pair_ * 2;
      sum.x += ToFloat(pair[0]);
      sum.y += ToFloat(pair[1]);
    }
    sum_.x += sum.x;
    sum_.y += sum.y;
  }

  // Writes the sums of the columns that exist. `shared` is free; all threads call.
  KNNCONV_DEVICE void Store(float2* shared, float* out, int columns) {
    if (part_ < kParts) shared[part_ * kPairs + pair_] = sum_;
    __syncthreads();
    if (threadIdx.x >= kPairs) return;
    float2 sum = shared[threadIdx.x];
#pragma unroll 1
    for (int part = 1; part < kParts; ++part) {
      sum.x += shared[part * kPairs + threadIdx.x].x;
      sum.y += shared[part * kPairs + threadIdx.x].y;
    }
    StorePartials(out + pair_ * 2, sum.x, sum.y, columns - pair_ * 2, false, false);
  }

 private:
  const int pair_ = threadIdx.x % kPairs, part_ = threadIdx.x / kPairs;
  float2 sum_ = make_float2(0, 0);
};

template <typename Shape>
using StemDweightSums = float[Shape::kUnits][Shape::kTiles][4];

template <typename Shape>
KNNCONV_DEVICE void StoreStemSums(const Dweight& dweight, const StemSlice& slice, const StemDweightSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarpSize, column = slice.first_column + lane % 4 * 2, channel = lane / 4;
  const int first = slice.first_slot + threadIdx.x / kWarpSize * Shape::kUnits * 2;
  if (channel >= dweight.channels) return;
  float* const out = dweight.partials + int64_t{slice.number} * dweight.slots * dweight.channels * dweight.columns;
#pragma unroll
  for (int unit = 0; unit < Shape::kUnits; ++unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = first + unit * 2 + half;
      if (slot >= dweight.slots) continue;
      float* const row = out + (int64_t{slot} * dweight.channels + channel) * dweight.columns + column;
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) {
        StorePartials(row + n * 8, sums[unit][n][half * 2], sums[unit][n][half * 2 + 1],
                      dweight.columns - column - n * 8, false, true);
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
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, matrix = lane / 8, inner = lane % 8;
    const int neighbours = taps.table.neighbours, outputs = taps.table.outputs;
    if (threadIdx.x == 0) *reinterpret_cast<uint4*>(shared) = make_uint4(0, 0, 0, 0);

    // The lane's slot of each unit, and row of each step.
    const int first_slot = slice.first_slot + warp * Shape::kUnits * 2 + matrix % 2, own_row = matrix / 2 * 8 + inner;
    int32_t next[Shape::kUnits];
    const auto fetch = [&](int row) {
      const int32_t* const from = slice.indices + int64_t{row} * neighbours + first_slot;
#pragma unroll
      for (int unit = 0; unit < Shape::kUnits; ++unit) {
        next[unit] = row < outputs && first_slot + unit * 2 < neighbours ? ReadOnly(from + unit * 2) : -1;
      }
    };
    const bool sums_bias = plan.bias_partials != nullptr && slice.first_slot == 0;
    StemColumns<Shape> columns;
    const int64_t sample = int64_t{slice.slice} * plan.samples;
    const int samples = static_cast<int>(min(int64_t{plan.samples}, dweight.batch - sample));
    const auto copy = [&](int row, int stage) {
      if (row < outputs) {
        StageStemCotangent<Shape>(dweight, taps, plan, slice, sample, samples, row,
                                  shared + plan.stage_at + stage * plan.stage_bytes);
      }
      CommitCopies();
    };
    copy(0, 0);
    for (int which = 0; which < samples; ++which) {
      StageStemSource<T, 8, 4>(slice.x, dweight.x_type, sample + which, taps.table.sources, dweight.channels,
                               plan.by_depth, Shape::kThreads, shared + plan.source_at + which * plan.sample_bytes);
    }
    fetch(own_row);

    StemDweightSums<Shape> sums = {};
    int stage = 0;
#pragma unroll 1
    for (int row = 0; row < outputs; row += kStemPositions, stage ^= 1) {
      WaitForCopies<0>();
      __syncthreads();  // also, every warp is done with the other stage
      copy(row + kStemPositions, stage ^ 1);
      const char* const staged = shared + plan.stage_at + stage * plan.stage_bytes;
      for (int which = 0; which < samples && sums_bias; ++which) {
        columns.Add(staged + which * plan.cotangent_bytes, plan.cotangent_pitch);
      }
#pragma unroll 1
      for (int step = 0; step < kStemPositions / 16; ++step) {
        int at[Shape::kUnits];
#pragma unroll
        for (int unit = 0; unit < Shape::kUnits; ++unit) {
          at[unit] = IsBelow(next[unit], taps.table.sources) ? plan.source_at + next[unit] * 16 : -1;
        }
        fetch(row + (step + 1) * 16 + own_row);
#pragma unroll 1
        for (int which = 0; which < samples; ++which) {
          const char* const tile = staged + which * plan.cotangent_bytes +
                                   (step * 16 + matrix % 2 * 8 + inner) * plan.cotangent_pitch + matrix / 2 * 16;
          uint32_t a[Shape::kUnits][4];
#pragma unroll
          for (int unit = 0; unit < Shape::kUnits; ++unit) {
            LoadMatrices<true>(a[unit], shared + (at[unit] >= 0 ? at[unit] + which * plan.sample_bytes : 0));
          }
#pragma unroll
          for (int pair = 0; pair < Shape::kTiles / 2; ++pair) {
            uint32_t b[4];
            LoadMatrices<true>(b, tile + pair * 32);
#pragma unroll
            for (int unit = 0; unit < Shape::kUnits; ++unit) {
              Multiply16x8<T>(sums[unit][pair * 2], a[unit], b[0], b[1]);
              Multiply16x8<T>(sums[unit][pair * 2 + 1], a[unit], b[2], b[3]);
            }
          }
        }
      }
    }
    StoreStemSums<Shape>(dweight, slice, sums);
    if (sums_bias) {
      __syncthreads();
      columns.Store(reinterpret_cast<float2*>(shared),
                    plan.bias_partials + int64_t{slice.number} * dweight.columns + slice.first_column,
                    dweight.columns - slice.first_column);
    }
  }
}

}  // namespace knnconv::gpu
