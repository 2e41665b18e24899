// Dense convolutions of few channels, each tile's halo in shared memory once:
//
//     out[pixel, :] = round(bias + sum over taps f:  source[pixel's place + offset(f), :] @ weight[slot(f)])
//
//         halo of source pixels               weights (all slots, for the block's life)
//         [ . . . . . . . . ]                 [ depth (tap, channel) ]
//         [ . t t t t t t . ]  @ each step    [    x columns         ]    4 warps, 16 pixels x 8 columns x 16 deep
//         [ . t t t t t t . ]    a tap moves
//         [ . . . . . . . . ]    the addresses
//
// The depth of the product is (tap, channel) flattened, 16 a step. With 8 channels and more, a step is two chunks of 8
// channels by ldmatrix, one row of whose matrices is one pixel, wherever it lies. With up to 4 channels, a step is four
// taps and a lane's four depths are one tap's channels: products do not care in which order depths stand, if weights
// stand alike.
//
// Results leave from registers 16 bytes at a time, since a lane's columns are neighbours (ColumnDeal). A block keeps
// its weights and walks over tiles, copying the next halo while it computes; other blocks of the multiprocessor fill
// its gaps. What bounds it: source and result once through memory, and products at the rate of mma.sync.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "gpu/halo_stage.h"
#include "gpu/lanes.h"

namespace knnconv::gpu {

template <typename Shape>
using HaloSums = float[Shape::kHigh][Shape::kTiles][4];

// Bytes from the first pixel of a halo to where pixel number `pixel` of the tile finds tap offset (0, 0).
KNNCONV_DEVICE int PlaceOf(const HaloGeometry& geometry, int pixel) {
  const Divisor::Result at = geometry.by_width.Divide(pixel);
  const int i = at.quotient < geometry.tile[0] ? at.quotient : 0;
  return i * geometry.step[0] * geometry.line_pitch + at.remainder * geometry.pixel_pitch;
}

// One tile by chunks. `halo` is where the block's halo lies in `shared`.
template <typename Shape>
KNNCONV_DEVICE void MultiplyChunks(const HaloPlan& plan, const char* shared, int halo, int steps,
                                   HaloSums<Shape>& sums) {
  constexpr int kPitch = Shape::kWeightPitch;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, matrix = lane / 8, inner = lane % 8;
  int place[Shape::kHigh];
#pragma unroll
  for (int m = 0; m < Shape::kHigh; ++m) place[m] = halo + PlaceOf(plan, (warp * Shape::kHigh + m) * 16 + lane % 16);
  const HaloEntry* entry = reinterpret_cast<const HaloEntry*>(shared + plan.table_at) + lane / 16;
  // Of a matrix pair (upper and lower half of a step's depth) of one product, and of its neighbour's.
  const int pair = Shape::kTiles == 1 ? 0 : matrix / 2;
  const char* weight = shared + plan.weight_at +
                       (Shape::kTransposed ? (pair * 8 + inner) * plan.weight_pitch + matrix % 2 * 16
                                           : (matrix % 2 * 8 + inner) * kPitch + pair * 16);
  HaloEntry tap = *entry;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    uint32_t b[Shape::kTiles + 1][2];
#pragma unroll
    for (int n = 0; n < Shape::kTiles; n += 2) {
      uint32_t four[4];
      LoadMatrices<!Shape::kTransposed>(four, weight + (Shape::kTransposed ? n * 8 * plan.weight_pitch : n * 16));
      b[n][0] = four[0];
      b[n][1] = four[1];
      b[n + 1][0] = four[2];
      b[n + 1][1] = four[3];
    }
    weight += Shape::kTransposed ? 32 : 16 * kPitch;
    const HaloEntry next = entry[step * 2 + 2];
#pragma unroll
    for (int m = 0; m < Shape::kHigh; ++m) {
      uint32_t a[4];
      LoadMatrices<false>(a, shared + ((place[m] & tap.mask) + tap.at));
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) Multiply16x8<typename Shape::T>(sums[m][n], a, b[n][0], b[n][1]);
    }
    tap = next;
  }
}

// One tile by quads.
template <typename Shape>
KNNCONV_DEVICE void MultiplyQuads(const HaloPlan& plan, const char* shared, int halo, int steps,
                                  HaloSums<Shape>& sums) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int place[Shape::kHigh][2];
#pragma unroll
  for (int m = 0; m < Shape::kHigh; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      place[m][half] = halo + PlaceOf(plan, (warp * Shape::kHigh + m) * 16 + half * 8 + lane / 4);
    }
  }
  const HaloEntry* entry = reinterpret_cast<const HaloEntry*>(shared + plan.table_at) + lane % 4;
  const uint2* weight = reinterpret_cast<const uint2*>(shared + plan.weight_at) + lane;
  HaloEntry tap = *entry;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    uint2 b[Shape::kTiles];
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) b[n] = weight[n * kWarpSize];
    weight += Shape::kTiles * kWarpSize;
    const HaloEntry next = entry[step * 4 + 4];
#pragma unroll
    for (int m = 0; m < Shape::kHigh; ++m) {
      const uint2 upper = *reinterpret_cast<const uint2*>(shared + ((place[m][0] & tap.mask) + tap.at));
      const uint2 lower = *reinterpret_cast<const uint2*>(shared + ((place[m][1] & tap.mask) + tap.at));
      const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) Multiply16x8<typename Shape::T>(sums[m][n], a, b[n].x, b[n].y);
    }
    tap = next;
  }
}

// Where each of the lane's pixels lies in the result, in elements from the tile's first pixel on; kNoPixel past the
// last of the tile.
inline constexpr int kNoPixel = -1;

template <typename Shape>
KNNCONV_DEVICE int OutPlace(const TapGemm& gemm, const HaloPlan& plan, int pixel) {
  const Divisor::Result at = plan.by_width.Divide(pixel);
  if (at.quotient >= plan.tile[0]) return kNoPixel;
  return (at.quotient * plan.spacing[0] * gemm.window.out_size[1] + at.remainder * plan.spacing[1]) * gemm.columns;
}

// What the tile has of the image.
struct OutTile {
  char* out;  // the tile's first pixel, the block's first column
  int height, width;
};

KNNCONV_DEVICE OutTile FindOut(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, int tile_number) {
  const HaloTile tile = FindTile(plan, tile_number);
  const int h = tile.i * plan.spacing[0] + block.residue[0], w = tile.j * plan.spacing[1] + block.residue[1];
  const int64_t pixel = tile.image * gemm.nodes + int64_t{h} * gemm.window.out_size[1] + w;
  const int64_t at = pixel * gemm.columns + block.first_column;
  return {block.out + at * ElementBytes(gemm.out_type), block.size[0] - tile.i, block.size[1] - tile.j};
}

template <typename Shape>
KNNCONV_DEVICE bool Exists(const HaloPlan& plan, const OutTile& tile, int pixel) {
  if (tile.height >= plan.tile[0] && tile.width >= plan.tile[1]) return true;
  const Divisor::Result at = plan.by_width.Divide(pixel);
  return at.quotient < tile.height && at.remainder < tile.width;
}

// out = round(sums + bias) straight from registers, where rows of the result are multiples of 16 bytes.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreTile(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, const OutTile& tile,
                              const int (&place)[Shape::kHigh][2], const float* bias, const HaloSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kWidth = Deal::kWidth;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int group = 0; group < Deal::kGroups; ++group) {
    const int column = group * 8 * Deal::kGroup + lane % 4 * kWidth, count = gemm.columns - block.first_column - column;
    float own_bias[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) own_bias[e] = bias[column + e];
#pragma unroll
    for (int m = 0; m < Shape::kHigh; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = (warp * Shape::kHigh + m) * 16 + half * 8 + lane / 4;
        if (place[m][half] == kNoPixel || !Exists<Shape>(plan, tile, pixel)) continue;
        float value[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = sums[m][group * Deal::kGroup + e / 2][half * 2 + e % 2] + own_bias[e];
        }
        StoreColumns(reinterpret_cast<Out*>(tile.out) + place[m][half] + column, value, count);
      }
    }
  }
}

// The same for any rows: through the warp's patch of shared memory, one element at a time.
template <typename Shape>
KNNCONV_DEVICE void StoreTileByElements(const TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                        const OutTile& tile, const float* bias, float* patch,
                                        const HaloSums<Shape>& sums) {
  using Deal = typename Shape::Deal;
  constexpr int kPitch = HaloPatchPitch(Shape::kColumns);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int columns = min(Shape::kColumns, gemm.columns - block.first_column);
  patch += warp * 16 * kPitch;
#pragma unroll
  for (int m = 0; m < Shape::kHigh; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
      const int column = (n / Deal::kGroup * 4 * Deal::kGroup + n % Deal::kGroup) * 2 + lane % 4 * Deal::kWidth;
      float* const at = patch + lane / 4 * kPitch + column;
      *reinterpret_cast<float2*>(at) = make_float2(sums[m][n][0], sums[m][n][1]);
      *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(sums[m][n][2], sums[m][n][3]);
    }
    SyncWarp();
#pragma unroll 1
    for (int i = lane; i < 16 * columns; i += kWarpSize) {
      const int row = i / columns, column = i - row * columns, pixel = (warp * Shape::kHigh + m) * 16 + row;
      const int place = OutPlace<Shape>(gemm, plan, pixel);
      if (place == kNoPixel || !Exists<Shape>(plan, tile, pixel)) continue;
      StoreElement(tile.out, gemm.out_type, place + column, patch[row * kPitch + column] + bias[column]);
    }
    SyncWarp();
  }
}

template <typename Shape>
__global__ void KNNCONV_LAUNCH_BOUNDS(Shape::kThreads, Shape::kBlocks)
    HaloKernel(const KNNCONV_PARAMETER TapGemm gemm, const KNNCONV_PARAMETER HaloPlan plan) {
  if constexpr (kHasTensorCores<typename Shape::T>) {
    KNNCONV_DYNAMIC_SHARED(shared);
    const HaloBlock block = OpenHalo<Shape>(gemm, plan);
    const int steps = (block.taps * plan.chunks + Shape::kPerStep - 1) / Shape::kPerStep;
    const int stride = static_cast<int>(plan.blocks_of_kind);
    int out_place[Shape::kHigh][2];
#pragma unroll
    for (int m = 0; m < Shape::kHigh; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (threadIdx.x / kWarpSize * Shape::kHigh + m) * 16 + half * 8 + threadIdx.x % kWarpSize / 4;
        out_place[m][half] = OutPlace<Shape>(gemm, plan, row);
      }
    }
    const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
    const bool raw = plan.raw_bytes > 0, single = plan.stage_at == plan.halo_at;
    int halo = plan.halo_at, other = plan.stage_at;
    StageHalo(gemm, plan, block, block.source, block.part, threadIdx.x, shared + (raw ? other : halo));
    CommitCopies();
    FillTables<Shape>(gemm, plan, block, shared);
    __syncthreads();
    if constexpr (Shape::kQuads) {
      StageQuadWeights<Shape>(gemm, plan, block, shared, steps);
    } else {
      StageChunkWeights<Shape>(gemm, plan, block, shared, steps);
    }
#pragma unroll 1
    for (int tile = block.part; tile < plan.all_tiles; tile += stride) {
      WaitForCopies<0>();
      __syncthreads();  // also, every warp is done with the other halo
      if (raw) {
        UnpackHalo<typename Shape::T, Shape::kQuads>(gemm, plan, block, block.source, tile, shared + other,
                                                     shared + halo);
        __syncthreads();
      }
      const auto stage_next = [&] {
        if (tile + stride < plan.all_tiles) {
          StageHalo(gemm, plan, block, block.source, tile + stride, threadIdx.x, shared + other);
        }
        CommitCopies();
      };
      if (!single) stage_next();
      HaloSums<Shape> sums;
#pragma unroll
      for (auto& row : sums) {
#pragma unroll
        for (auto& product : row) product[0] = product[1] = product[2] = product[3] = 0.0f;
      }
      if constexpr (Shape::kQuads) {
        MultiplyQuads<Shape>(plan, shared, halo, steps, sums);
      } else {
        MultiplyChunks<Shape>(plan, shared, halo, steps, sums);
      }
      if (single) {
        __syncthreads();
        stage_next();
      }
      const OutTile out = FindOut(gemm, plan, block, tile);
      if (!plan.vector_out) {
        float* const patch = reinterpret_cast<float*>(shared + plan.patch_at);
        StoreTileByElements<Shape>(gemm, plan, block, out, bias, patch, sums);
      } else if (gemm.out_type == Element::kF32) {
        StoreTile<Shape, float>(gemm, plan, block, out, out_place, bias, sums);
      } else if (gemm.out_type == Element::kF16) {
        StoreTile<Shape, Half>(gemm, plan, block, out, out_place, bias, sums);
      } else {
        StoreTile<Shape, BFloat>(gemm, plan, block, out, out_place, bias, sums);
      }
      if (raw) continue;
      const int swap = halo;
      halo = other;
      other = swap;
    }
  }
}

}  // namespace knnconv::gpu
