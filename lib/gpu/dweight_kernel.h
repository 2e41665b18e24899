// One tile of dw, [rows of V * C, columns of O], over one slice of the positions:
//
//     dw[r, o] = sum over positions:  x[source(position, slot of r), channel of r] * g[row(position), o]
//
//                 positions (in steps)               columns
//     rows of dw  [ x's rows, gathered ]  @  positions [ g's rows ]
//
// Both operands lie in shared memory as they lie in memory, a position a row, and are read transposed where the
// product wants them so. Three stages of 16-byte copies keep two steps in flight. What bounds it: products where C
// and O are large, else filling shared memory from L2, where x's rows are read once for each slot and column tile.
//
// The bias gradient is summed from the tiles of g that are there anyway; row tiles take turns, so that none waits for
// it.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_launch.h"
#include "gpu/dweight_stage.h"
#include "gpu/dweight_taps.h"
#include "gpu/dweight_tile.h"

namespace knnconv::gpu {

// Where a block's tile lies in dw.
struct DweightBlock {
  uint32_t group, slice;
  int32_t row_tile;
  int32_t slot;       // of the tile, where it has one
  int32_t first_row;  // of dw
  int32_t rows;       // that exist; 0 or less in a block that only sums g
  int32_t first_column;
};

template <typename Tile, bool kBySlot>
KNNCONV_DEVICE DweightBlock FindBlock(const Dweight& dweight, const DweightGrid& grid) {
  DweightBlock block;
  uint32_t index = blockIdx.x;
  block.first_column = static_cast<int32_t>(index % grid.column_tiles) * Tile::kColumns;
  index /= grid.column_tiles;
  block.row_tile = static_cast<int32_t>(index % grid.row_tiles);
  index /= grid.row_tiles;
  block.slice = index % grid.slices;
  block.group = index / grid.slices;
  block.slot = 0;
  block.first_row = block.row_tile * Tile::kRows;
  int32_t end = dweight.slots * dweight.channels;
  if constexpr (kBySlot) {
    block.slot = grid.tiles_of_slot > 0 ? block.row_tile / grid.tiles_of_slot : dweight.slots;
    if (block.slot < dweight.slots) {
      block.first_row = block.slot * dweight.channels + block.row_tile % grid.tiles_of_slot * Tile::kRows;
      end = (block.slot + 1) * dweight.channels;
    } else {
      block.first_row = end;
    }
  }
  block.rows = min(Tile::kRows, end - block.first_row);
  return block;
}

template <DweightStaging kStaging>
inline constexpr StageBy kSourceBy = kStaging == DweightStaging::kBoth        ? StageBy::kAsyncCopy
                                     : kStaging == DweightStaging::kRegisters ? StageBy::kRegisters
                                                                              : StageBy::kElement;
template <DweightStaging kStaging>
inline constexpr StageBy kCotangentBy =
    kStaging == DweightStaging::kCotangent ? StageBy::kAsyncCopy : kSourceBy<kStaging>;

template <typename T, typename Taps, typename Tile, DweightStaging kStaging>
__global__ void KNNCONV_LAUNCH_BOUNDS(Tile::kThreads, Tile::kBlocks)
    DweightKernel(const KNNCONV_PARAMETER Dweight dweight, const KNNCONV_PARAMETER Taps taps,
                  const KNNCONV_PARAMETER DweightGrid grid) {
  if constexpr (kHasTensorCores<T>) {
    using View = typename ViewOf<Taps>::Type;
    constexpr int kPositions = Tile::kPositions, kParts = kPositions / kFragment;  // of a step
    KNNCONV_DYNAMIC_SHARED(shared);
    T* const tiles = reinterpret_cast<T*>(shared);

    const DweightBlock block = FindBlock<Tile, View::kBySlot>(dweight, grid);
    const bool multiplies = block.rows > 0;  // else the products are zeros
    const bool sums_columns = grid.bias_parts > 0 && (!View::kBySlot || !multiplies);
    const int turns = View::kBySlot ? 1 : static_cast<int>(grid.row_tiles);
    int turn = View::kBySlot ? 0 : static_cast<int>(block.row_tile);

    const auto view_of = [&](uint32_t member) {
      return View(taps, dweight.batch, dweight.shapes, {block.group, member}, block.slot);
    };
    const uint32_t members = static_cast<uint32_t>(dweight.shapes.members.count());
    int64_t positions = 0;
#pragma unroll 1
    for (uint32_t member = 0; member < members; ++member) positions += view_of(member).positions();
    const int64_t length = CeilDiv(CeilDiv(positions, grid.slices), kPositions) * kPositions;
    const int64_t end = min(positions, (int64_t{block.slice} + 1) * length);

    TileProducts<T, Tile> products;
    ColumnSums<T, Tile> column_sums;
    SourceStage<T, View, Tile::kThreads, kPositions, Tile::kRows, kSourceBy<kStaging>> source(dweight, block.first_row,
                                                                                              block.rows);
    CotangentStage<T, View, Tile::kThreads, kPositions, Tile::kColumns, kCotangentBy<kStaging>> cotangent(
        dweight, block.first_column);

    const int64_t slice = int64_t{block.group} * grid.slices + block.slice;
    const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
    int64_t at = block.slice * length, before = 0;  // positions of the members before this one
    uint32_t member = 0;
    int chain = 0;
    bool has_partial = false;
    while (true) {
      if (at < end) {
        View view = view_of(member);
#pragma unroll 1
        while (at >= before + view.positions()) {
          before += view.positions();
          view = view_of(++member);
        }
        const int64_t from = at - before;
        const int count = static_cast<int>(
            min(min(view.positions() - from, end - at), int64_t{kChainPositions}));
        const GroupNumber group{block.group, member};
        const int64_t x_offset = GroupOffset(dweight.shapes, group, dweight.x_groups) * ElementBytes(dweight.x_type);
        source.Start(view, static_cast<const char*>(dweight.x) + x_offset, from, count);
        const int64_t g_offset = GroupOffset(dweight.shapes, group, dweight.g_groups);
        cotangent.Start(view, static_cast<const T*>(dweight.g) + g_offset, from, count);

        const int steps = (count + kPositions - 1) / kPositions;
        int next = 0, buffer = 0;  // where the next step is staged, and where this one was
        // The first steps are only staged. In the others, copies start between products.
#pragma unroll 1
        for (int step = 1 - Tile::kStages; step < steps; ++step) {
          T* const into = tiles + next * Tile::kStageElements;
          const T* const tile = tiles + buffer * Tile::kStageElements;
          next = next == Tile::kStages - 1 ? 0 : next + 1;
          const auto stage = [&](int part) {
            constexpr int kSourcePasses = decltype(source)::kPasses, kCotangentPasses = decltype(cotangent)::kPasses;
#pragma unroll
            for (int pass = kSourcePasses * part / kParts; pass < kSourcePasses * (part + 1) / kParts; ++pass) {
              source.Stage(view, into, pass);
            }
#pragma unroll
            for (int pass = kCotangentPasses * part / kParts; pass < kCotangentPasses * (part + 1) / kParts; ++pass) {
              cotangent.Stage(view, into + Tile::kSourceElements, pass);
            }
          };
          if (step < 0) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) stage(part);
          } else {
            if constexpr (kHasBarriers) {
              WaitForCopies<Tile::kStages - 2>();
              __syncthreads();
            }
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
              products.Add(tile, tile + Tile::kSourceElements, part * kFragment);
              stage(part);
            }
          }
          CommitCopies();
          source.EndStep(view);
          cotangent.EndStep(view);
          if (step < 0) continue;
          if (sums_columns && turn == 0) column_sums.Add(tile + Tile::kSourceElements, view, from + step * kPositions);
          turn = turn == 0 ? turns - 1 : turn - 1;
          buffer = buffer == Tile::kStages - 1 ? 0 : buffer + 1;
        }
        WaitForCopies<0>();  // of the zeros past the last step, before their room serves the sums
        __syncthreads();
        at += count;
        chain += count;
      }
      if (at < end && chain < kChainPositions) continue;
      if (multiplies) {
        float* const out = dweight.partials + slice * weight + int64_t{block.first_row} * dweight.columns +
                           block.first_column;
        products.Store(reinterpret_cast<float*>(shared), out, dweight.columns, block.rows,
                       dweight.columns - block.first_column, has_partial, grid.vector_partials);
      }
      column_sums.EndChain();
      if (at >= end) break;
      __syncthreads();
      products.Clear();
      has_partial = true;
      chain = 0;
    }
    if (sums_columns) {
      __syncthreads();
      const int64_t part = slice * grid.bias_parts + (View::kBySlot ? 0 : block.row_tile);
      column_sums.Store(reinterpret_cast<float2*>(shared),
                        grid.bias_partials + part * dweight.columns + block.first_column,
                        dweight.columns - block.first_column);
    }
  }
}

}  // namespace knnconv::gpu
