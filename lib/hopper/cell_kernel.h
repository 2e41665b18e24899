// dinput of small batches on Hopper, in bfloat16, of few channels: nodes of a tile differ, and a node has any number of
// taps of a slot.
//
//     for each tile [128 nodes, 64 columns] of dx, for each slot, for 64 of its channels:
//         lines = rows of g, those of all taps that the nodes have of the slot          (cp.async)
//         A [128, 64] = sums of each node's lines                                       (mma.sync, ones and zeros)
//         B [64, 64] = the slot's weight, transposed                                    (TMA)
//         sums += A_high @ B + A_low @ B                                                (wgmma, fp32)
//     dx = round(sums)
//
// Where products cost more, and in float16, whose sums may leave its range, extra_kernel.h multiplies first. Those who
// sort, gather and add are busy alike here.
#pragma once

#include "gpu/launch.h"
#include "hopper/cell_feed.h"
#include "hopper/cell_products.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) CellKernel(const __grid_constant__ TapPlan plan) {
  extern __shared__ char shared[];
  const int thread = threadIdx.x;
  const bool consumes = thread < Shape::kConsumerThreads;
  const CellPipe<Shape> pipe(shared, consumes ? thread / 128 : thread % 128 / Shape::kHalfRows);
  if (thread == 0) CellPipe<Shape>(shared, 0).Init();
  __syncthreads();
  const TileWalk<Shape> walk(plan, nullptr, 0);
  if (consumes) {
    GrowRegisters<Shape::kConsumerRegisters>();
    CellConsumer<Shape>(plan, pipe, walk).Run();
  } else {
    ShrinkRegisters<Shape::kProducerRegisters>();
    CellTable<Shape>& table = pipe.Table();
    if (thread < Shape::kConsumerThreads + 128) {
      LayOutTiles(CellSorter<Shape>(plan, table, walk), table.ring, walk);
    } else {
      CellFeeder<Shape>(plan, pipe, walk).Run();
    }
  }
}

}  // namespace knnconv::hopper
