// dinput of small batches on Hopper: nodes of a tile differ, and a node has any number of taps of a slot.
//
//     for each tile [128 nodes, columns] of dx, for each slot:
//         rows = of each node, the row of g of its first tap of the slot                                     (cp.async)
//         lines = the rows of g of all other taps of the slot                                                (cp.async)
//         sums [128, columns] += rows @ the slot's weight, transposed                             (wgmma, in registers)
//         products [64, columns] = lines @ the weight;  shared sums[node of each line] += its product
//     dx = round(sums + shared sums)
//
// A product for each tap of a slot, as rows of forward are multiplied, would take as many as the node has that has the
// most: on 100,000 points with K = 27, 114 where 27 slots exist. There, a third of the taps are extra, 47 of a slot in
// a tile, so that half as many lines more are multiplied. A warpgroup of its own does that, and adds their products to
// sums in shared memory, beside those who multiply rows, those who gather, and those who sort.
#pragma once

#include "gpu/launch.h"
#include "hopper/extra_feed.h"
#include "hopper/extra_lines.h"
#include "hopper/extra_rows.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) ExtraKernel(const __grid_constant__ TapPlan plan) {
  extern __shared__ char shared[];
  const int thread = threadIdx.x;
  const ExtraPipe<Shape> pipe(shared);
  if (thread == 0) pipe.Init();
  pipe.ClearSums();
  __syncthreads();
  const TileWalk<Shape> walk(plan, nullptr, 0);
  constexpr int kConsumerThreads = Shape::kConsumerThreads + 128;
  if (thread < Shape::kConsumerThreads) {
    GrowRegisters<Shape::kRowRegisters>();
    RowConsumer<Shape>(plan, pipe, walk).Run();
  } else if (thread < kConsumerThreads) {
    ShrinkRegisters<Shape::kLineRegisters>();
    LineConsumer<Shape>(plan, pipe, walk).Run();
  } else if (thread < kConsumerThreads + kSortThreads) {
    ShrinkRegisters<Shape::kSorterRegisters>();
    SortTiles(plan, pipe.Table(), walk);
  } else {
    ShrinkRegisters<Shape::kFeederRegisters>();
    ExtraFeeder<Shape>(plan, pipe, walk).Run();
  }
}

}  // namespace knnconv::hopper
