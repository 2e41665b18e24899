// Weight gradients of few channels, each tile's halo of x and its pixels of g in shared memory once:
//
//     dw[tap, c, o] = sum over pixels p:  x[p's place + offset(tap), c] * g[p, o]
//     db[o] = sum over pixels p:  g[p, o]
//
//         rows (tap, channel)                   columns
//         [ x's halo, shifted by the tap ]  @  [ g's tile ]        depth: 16 pixels a step
//
// A block holds all of dw, or a large part, in registers while it walks over tiles: 4 warps down share the rows, warps
// across the columns, and every warp runs over all pixels. x is read transposed by ldmatrix: one row of its matrices is
// one pixel's 8 channels, wherever they lie, so that a tap moves the address and nothing else. Pixels of the tile that
// the image lacks multiply zeros of g with zeros.
//
// db comes from the same tiles of g, multiplied by ones: a step's 16 pixels in the tensor cores, steps by fp32
// additions.
//
// What bounds it: x and g once through memory, and ldmatrix: a warp loads a fragment of x for each 4 products.
#pragma once

#include <cstdint>

#include "gpu/dweight_plan.h"
#include "gpu/halo_dweight_plan.h"
#include "gpu/halo_dweight_sums.h"
#include "gpu/halo_stage.h"

namespace knnconv::gpu {

template <typename T_, int kUnits_, int kGroups_>
struct HaloDweightTile {
  using T = T_;
  static constexpr int kUnits = kUnits_, kGroups = kGroups_, kWarpsDown = 4, kProducts = 4;
  static constexpr int kWarps = kWarpsDown * kGroups, kThreads = kWarps * kWarpSize;
  static constexpr int kColumns = kGroups * kProducts * 8;
  static constexpr int kBlocks = HaloDweightBlocks(kUnits, kGroups);
};

// A block's place. The same in all threads.
struct HaloSlice : HaloTaps {
  const char* source;
  const void* cotangent;
  int first_unit, first_column;
  uint32_t slice, number;  // number: (group, slice)
};

template <typename Tile>
KNNCONV_DEVICE HaloSlice OpenSlice(const Dweight& dweight, const TapGemm& forward, const HaloDweightPlan& plan) {
  HaloSlice slice;
  uint32_t index = blockIdx.x;
  slice.first_column = static_cast<int>(index % plan.column_tiles) * Tile::kColumns;
  index /= plan.column_tiles;
  slice.first_unit = static_cast<int>(index % plan.row_tiles) * Tile::kWarpsDown * Tile::kUnits;
  index /= plan.row_tiles;
  slice.number = index;
  slice.slice = index % plan.slices;
  const uint32_t group = index / plan.slices;
  slice.source = static_cast<const char*>(dweight.x) +
                 dweight.x_groups.Offset(forward.groups, group) * ElementBytes(dweight.x_type);
  slice.cotangent = static_cast<const typename Tile::T*>(dweight.g) + dweight.g_groups.Offset(forward.groups, group);
  static_cast<HaloTaps&>(slice) = FindTaps(forward, plan, 0);
  return slice;
}

// Pixels of a tile, as rows of the block's columns; pixels and columns that do not exist are zero.
template <typename Tile>
KNNCONV_DEVICE void StageCotangent(const TapGemm& forward, const HaloDweightPlan& plan, const HaloSlice& slice,
                                   int tile_number, char* to) {
  using T = typename Tile::T;
  constexpr int kLine = Tile::kColumns / kHaloChunk;
  const HaloTile tile = FindTile(plan, tile_number);
  const int column = threadIdx.x % kLine * kHaloChunk, left = forward.columns - slice.first_column - column;
  const T* const from = static_cast<const T*>(slice.cotangent) + slice.first_column + column;
  const int pixels = (plan.tile[0] * plan.tile[1] + 15) / 16 * 16;
#pragma unroll 4
  for (int pixel = threadIdx.x / kLine; pixel < pixels; pixel += Tile::kThreads / kLine) {
    const Divisor::Result at = plan.by_width.Divide(pixel);
    const int i = tile.i + at.quotient, j = tile.j + at.remainder;
    const bool exists = at.quotient < plan.tile[0] && i < slice.size[0] && j < slice.size[1] && left > 0;
    const int64_t row = exists ? tile.image * forward.nodes + int64_t{i} * slice.size[1] + j : 0;
    char* const line = to + pixel * plan.cotangent_pitch + column * 2;
    if (plan.vector_cotangent) {
      CopyAsync16(line, from + row * forward.columns, exists);
    } else {
      *reinterpret_cast<uint4*>(line) =
          ReadElements<T>(from + row * forward.columns, exists ? left : 0, 1);
    }
  }
}

template <typename Tile>
using HaloDweightSums = float[Tile::kUnits][Tile::kProducts][4];

// Adds one tile's products, and g's columns to `bias` where `sums_bias`. `place` is where the lane's chunks of x lie
// from a pixel's own place; `halo` and `cotangent`, where tiles lie in `shared`.
template <typename Tile>
KNNCONV_DEVICE void MultiplyTile(const HaloDweightPlan& plan, const HaloSlice& slice, int tile_number,
                                 const char* shared, int halo, int cotangent, const int (&place)[Tile::kUnits],
                                 bool sums_bias, HaloDweightSums<Tile>& sums, float (&bias)[Tile::kProducts][2]) {
  using T = typename Tile::T;
  const int lane = threadIdx.x % kWarpSize, across = threadIdx.x / kWarpSize / Tile::kWarpsDown;
  const int matrix = lane / 8, inner = lane % 8;
  const HaloTile tile = FindTile(plan, tile_number);
  const int height = min(plan.tile[0], slice.size[0] - tile.i), width = min(plan.tile[1], slice.size[1] - tile.j);
  const int steps = (plan.tile[0] * plan.tile[1] + 15) / 16;
  const int line_step = plan.step[0] * plan.line_pitch;
  cotangent += (matrix % 2 * 8 + inner) * plan.cotangent_pitch + (across * Tile::kProducts * 8 + matrix / 2 * 8) * 2;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    const Divisor::Result at = plan.by_width.Divide(step * 16 + matrix / 2 * 8 + inner);
    const bool exists = at.quotient < height && at.remainder < width;
    const int pixel = exists ? halo + at.quotient * line_step + at.remainder * plan.pixel_pitch : 0;
    const int mask = exists ? -1 : 0;  // else zeros, which stand first in shared memory
    uint32_t b[Tile::kProducts / 2][4];
#pragma unroll
    for (int pair = 0; pair < Tile::kProducts / 2; ++pair) LoadMatrices<true>(b[pair], shared + cotangent + pair * 32);
    cotangent += 16 * plan.cotangent_pitch;
#pragma unroll
    for (int unit = 0; unit < Tile::kUnits; ++unit) {
      uint32_t a[4];
      LoadMatrices<true>(a, shared + (pixel + (place[unit] & mask)));
#pragma unroll
      for (int n = 0; n < Tile::kProducts; ++n) {
        Multiply16x8<T>(sums[unit][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
    if (sums_bias) {
#pragma unroll
      for (int n = 0; n < Tile::kProducts; ++n) AddColumns<T>(bias[n], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
}

template <typename Tile>
KNNCONV_DEVICE void StoreSums(const Dweight& dweight, const HaloDweightPlan& plan, const HaloSlice& slice,
                              const HaloDweightSums<Tile>& sums, bool add) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int column = slice.first_column + warp / Tile::kWarpsDown * Tile::kProducts * 8 + lane % 4 * 2;
  const int first_unit = slice.first_unit + warp % Tile::kWarpsDown * Tile::kUnits;
  float* const out = dweight.partials + int64_t{slice.number} * dweight.slots * dweight.channels * dweight.columns;
#pragma unroll
  for (int unit = 0; unit < Tile::kUnits; ++unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Divisor::Result tap = plan.by_chunks.Divide((first_unit + unit) * 2 + half);
      const int channel = tap.remainder * kHaloChunk + lane / 4;
      if (tap.quotient >= slice.taps || channel >= dweight.channels) continue;
      float* const row = out + (int64_t{tap.quotient} * dweight.channels + channel) * dweight.columns + column;
#pragma unroll
      for (int n = 0; n < Tile::kProducts; ++n) {
        StorePartials(row + n * 8, sums[unit][n][half * 2], sums[unit][n][half * 2 + 1],
                      dweight.columns - column - n * 8, add, plan.vector_partials);
      }
    }
  }
}

template <typename Tile>
__global__ void KNNCONV_LAUNCH_BOUNDS(Tile::kThreads, Tile::kBlocks)
    HaloDweightKernel(const KNNCONV_PARAMETER Dweight dweight, const KNNCONV_PARAMETER TapGemm forward,
                      const KNNCONV_PARAMETER HaloDweightPlan plan) {
  if constexpr (kHasTensorCores<typename Tile::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const HaloSlice slice = OpenSlice<Tile>(dweight, forward, plan);
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, down = warp % Tile::kWarpsDown;
    const bool sums_bias = plan.bias_partials != nullptr && slice.first_unit == 0 && down == Tile::kWarpsDown - 1;

    HaloDweightSums<Tile> sums = {};
    float bias[Tile::kProducts][2] = {}, bias_chain[Tile::kProducts][2] = {};

    // g's tiles have two places, the halo one if it comes raw.
    const bool raw = plan.raw_bytes > 0;
    int stage = plan.stage_at, other = plan.stage_at + plan.stage_bytes, chain = 0;
    const auto copy = [&](int tile, int to) {
      const int halo = raw ? plan.raw_at : to + plan.cotangent_bytes;
      StageHalo(forward, plan, slice, slice.source, tile, threadIdx.x, shared + halo);
      StageCotangent<Tile>(forward, plan, slice, tile, shared + to);
    };
    const int stride = static_cast<int>(plan.slices);
    bool has_partial = false;
    if (static_cast<int>(slice.slice) < plan.all_tiles) copy(slice.slice, stage);
    CommitCopies();
    HaloEntry* const table = reinterpret_cast<HaloEntry*>(shared + plan.table_at);
    FillTable(forward, plan, slice, Tile::kThreads, 1, table, reinterpret_cast<int32_t*>(shared + plan.slots_at));
    if (threadIdx.x == 0) *reinterpret_cast<uint4*>(shared) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    int place[Tile::kUnits];
#pragma unroll
    for (int unit = 0; unit < Tile::kUnits; ++unit) {
      const int chunk = (slice.first_unit + down * Tile::kUnits + unit) * 2 + lane / 8 % 2;
      place[unit] = chunk < slice.taps * plan.chunks ? table[chunk].at : 0;  // rows past the last are not stored
    }
#pragma unroll 1
    for (int tile = slice.slice; tile < plan.all_tiles; tile += stride) {
      WaitForCopies<0>();
      __syncthreads();  // also, every warp is done with the other stage
      const int halo = raw ? plan.halo_at : stage + plan.cotangent_bytes;
      if (raw) {
        UnpackHalo<typename Tile::T, false>(forward, plan, slice, slice.source, tile, shared + plan.raw_at,
                                            shared + halo);
        __syncthreads();
      }
      if (tile + stride < plan.all_tiles) copy(tile + stride, other);
      CommitCopies();
      MultiplyTile<Tile>(plan, slice, tile, shared, halo, stage, place, sums_bias, sums, bias_chain);
      const int swap = stage;
      stage = other;
      other = swap;
      chain += plan.tile[0] * plan.tile[1];
      if (chain < kChainPositions || tile + stride >= plan.all_tiles) continue;
      StoreSums<Tile>(dweight, plan, slice, sums, has_partial);
      has_partial = true;
      chain = 0;
#pragma unroll
      for (auto& unit : sums) {
#pragma unroll
        for (auto& product : unit) product[0] = product[1] = product[2] = product[3] = 0.0f;
      }
#pragma unroll
      for (int n = 0; n < Tile::kProducts; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          bias[n][i] += bias_chain[n][i];
          bias_chain[n][i] = 0.0f;
        }
      }
    }
    StoreSums<Tile>(dweight, plan, slice, sums, has_partial);
    if (sums_bias && lane < 4) {
      const int column = slice.first_column + warp / Tile::kWarpsDown * Tile::kProducts * 8 + lane * 2;
      float* const out = plan.bias_partials + int64_t{slice.number} * dweight.columns + column;
#pragma unroll
      for (int n = 0; n < Tile::kProducts; ++n) {
        StorePartials(out + n * 8, bias[n][0] + bias_chain[n][0], bias[n][1] + bias_chain[n][1],
                      dweight.columns - column - n * 8, false, false);
      }
    }
  }
}

}  // namespace knnconv::gpu
