// Dinput of up to 4 channels on Hopper: halo_kernel.h with folds (halo_plan.h).
//
//     dx[fold u, pixel a, :] = round(sum over offsets d:  g[u's place + d, :] @ weight[slot(a, d)])
//
//         halo of g                           weights (all offsets, for the block's life)
//         [ . . . . . . . . ]                 [ depth (offset, channel of g)     ]
//         [ . t t t t t t . ]  @ each step    [    x columns (a, channel of dx)  ]
//         [ . . . . . . . . ]    an offset moves the address
//
// A fold is some lines of g high, so that a block's rows lie as many lines apart. Teams of a multiprocessor share the
// weights, which its threads put together: where no slot takes a pixel to a fold's pixel stand zeros. Each team has
// tiles of its own, whose halos the copy engine brings. Results leave from registers one by one, since they are few.
//
// What bounds it: A's way from shared memory, 16 cycles for 64 pixels of g and 16 channels, at each offset.
#pragma once

#include <cstdint>

#include "gpu/launch.h"
#include "hopper/halo_products.h"

namespace knnconv::hopper {

// The slot's position along a dimension by which the fold's pixel reads at `offset`, or -1.
KNNCONV_DEVICE int FoldSlot(const gpu::WindowTaps& window, int dimension, int pixel, int offset) {
  const int distance = pixel + window.padding[dimension] - offset * window.stride[dimension];
  const int slot = distance / window.dilation[dimension];
  return distance >= 0 && slot * window.dilation[dimension] == distance && slot < window.kernel[dimension] ? slot : -1;
}

// Of a fold, which pixel and channel a column is. Columns behind the last are of a line below the fold.
struct FoldColumn {
  int down, across, channel;
};
KNNCONV_DEVICE FoldColumn FindColumn(const gpu::TapGemm& gemm, const HaloPlan& plan, int column) {
  const int pixel = column / gemm.columns, down = pixel / plan.spacing[1];
  return {down, pixel - down * plan.spacing[1], column - pixel * gemm.columns};
}

// Weights as wgmma's B, in lines as the copy engine would write them: each a column's depth at an offset.
template <typename Shape>
KNNCONV_DEVICE void StageFoldWeights(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, char* to) {
  constexpr int kChunks = Shape::kGroupSteps * 2, kLine = kChunks * 16;  // of 16 bytes
  const uint4* const weight = static_cast<const uint4*>(gemm.weight);
  const int chunks = gemm.depth / 8;
  // Unit i: a chunk of a line.
  const auto load = [&](int i) {
    const int chunk = i % kChunks, line = i / kChunks, tap = line / Shape::kColumns;
    const FoldColumn column = FindColumn(gemm, plan, line - tap * Shape::kColumns);
    const int down = tap / block.columns, across = tap - down * block.columns;
    const int high = FoldSlot(gemm.window, 0, column.down, block.pixels.corner[0] + down);
    const int wide = FoldSlot(gemm.window, 1, column.across, block.pixels.corner[1] + across);
    if (column.down >= plan.spacing[0] || high < 0 || wide < 0 || chunk >= chunks) return make_uint4(0, 0, 0, 0);
    const int64_t slot = high * gemm.window.kernel[1] + wide;
    return gpu::ReadOnly(weight + (slot * gemm.columns + column.channel) * chunks + chunk);
  };
  const auto store = [&](int i, const uint4& bits) {
    const int chunk = i % kChunks, line = i / kChunks;
    *reinterpret_cast<uint4*>(to + line * kLine + (chunk ^ line * kLine / 128 % kChunks) * 16) = bits;
  };
  gpu::CopyBatched<4>(block.lines * block.columns * Shape::kColumns * kChunks, plan.teams * kTeamThreads, load, store);
}

// Writes a tile's results. A warp has two folds above each other in each of 8 columns of each block, a quad of lanes
// one pixel of g of each.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreFoldsAs(const gpu::TapGemm& gemm, const HaloPlan& plan, int tile_number, int thread,
                                 const FoldColumn (&columns)[Shape::kColumns / 4], const HaloSums<Shape>& sums) {
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int lane = thread % 32, first_line = tile.i + thread / 32 * 2, first_pixel = tile.j + lane / 4;
  const int(&size)[2] = gemm.window.out_size;
  Out* const image = static_cast<Out*>(gemm.out) + int64_t{tile.image} * gemm.nodes * gemm.columns;
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int w = (first_pixel + BlockAcross(plan, i) * kBlockSide) * plan.spacing[1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = (first_line + BlockDown(plan, i) * kBlockSide + half) * plan.spacing[0];
      const int high = min(size[0] - h, plan.spacing[0]), wide = size[1] - w;
      Out* const out = image + (h * size[1] + w) * gemm.columns;
      const auto place = [&](const FoldColumn& at) {
        return (at.down * size[1] + at.across) * gemm.columns + at.channel;
      };
      const auto exists = [&](const FoldColumn& at) { return at.down < high && at.across < wide; };
#pragma unroll
      for (int j = 0; j < Shape::kColumns / 8; ++j) {
        const FoldColumn &first = columns[2 * j], &second = columns[2 * j + 1];
        struct alignas(2 * sizeof(Out)) Pair {
          Out element[2];
        };
        Pair pair;
#pragma unroll
        for (int e = 0; e < 2; ++e) pair.element[e] = gpu::FromFloat<Out>(sums[i][j * 4 + half * 2 + e]);
        if (plan.column_pairs && exists(second)) {
          *reinterpret_cast<Pair*>(out + place(first)) = pair;
        } else {
          if (exists(first)) out[place(first)] = pair.element[0];
          if (exists(second)) out[place(second)] = pair.element[1];
        }
      }
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void StoreFolds(const gpu::TapGemm& gemm, const HaloPlan& plan, int tile_number, int thread,
                               const FoldColumn (&columns)[Shape::kColumns / 4], const HaloSums<Shape>& sums) {
  if (gemm.out_type == gpu::Element::kF32) {
    StoreFoldsAs<Shape, float>(gemm, plan, tile_number, thread, columns, sums);
  } else if (gemm.out_type == gpu::Element::kF16) {
    StoreFoldsAs<Shape, gpu::Half>(gemm, plan, tile_number, thread, columns, sums);
  } else {
    StoreFoldsAs<Shape, gpu::BFloat>(gemm, plan, tile_number, thread, columns, sums);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloFoldKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan,
                   const __grid_constant__ CUtensorMap source) {
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kHaloTeams][kHaloStages];
  static_assert(sizeof(barriers) <= kHaloBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * plan.teams;
  char *const stages = shared + team * plan.stages * plan.stage_bytes, *const weight = shared + plan.weight_at;
  // A block's tiles lie far apart: so where tiles are few, blocks have equally many.
  int tile = block.part + team * static_cast<int>(plan.blocks_of_kind);
  const auto load = [&](int number, int to_stage) {
    if (number >= plan.all_tiles) return;
    LoadHalo(plan, block, source, number, stages + to_stage * plan.stage_bytes, &barriers[team][to_stage]);
  };
  if (thread == 0) {
    for (int i = 0; i < plan.stages; ++i) barriers[team][i].Init(1);
    FenceBarrierInit();
    FenceAsyncProxy();
    for (int i = 0; i < plan.stages; ++i) load(tile + i * stride, i);
  }
  __syncwarp();
  StageFoldWeights<Shape>(gemm, plan, block, weight);
  FoldColumn columns[Shape::kColumns / 4];  // of the thread's sums
#pragma unroll
  for (int e = 0; e < Shape::kColumns / 4; ++e) {
    columns[e] = FindColumn(gemm, plan, e / 2 * 8 + thread % 4 * 2 + e % 2);
  }
  FenceAsyncProxy();
  __syncthreads();
  int stage = 0;
  uint32_t parity = 0;
  NoTurns no_turns;
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    HaloSums<Shape> sums;
    ClearSums<Shape>(sums);
    const HaloOperands<Shape> operands(plan, block, stages + stage * plan.stage_bytes, weight);
    barriers[team][stage].Wait(parity);
    __syncwarp();  // products are a whole warp's
    StartProducts<Shape>(plan, block, operands, nullptr, no_turns, sums);
    WaitForSums<Shape>(sums);
    SyncThreads(1 + team, kTeamThreads);  // the halo is read
    if (thread == 0) load(tile + plan.stages * stride, stage);
    __syncwarp();
    StoreFolds<Shape>(gemm, plan, tile, thread, columns, sums);
    if (++stage == plan.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

}  // namespace knnconv::hopper
