// The kernel of a TapGemm on Hopper: forward and dinput, dense and KNN.
//
//     for each tile [rows, columns] of the result, for each tap and 64 of its channels:
//         A [rows, 64] = the tap's source rows,  B [64, columns] = the slot's weight rows       (TMA, a ring of stages)
//         sums += A @ B                                                                         (wgmma, fp32)
//     out = round(sums + bias)
//
// A block stays on its multiprocessor and takes every so manyth tile, so that the next tile's steps are on their way
// while one is written. Large tiles are bound by the products (and the chip's power), tiles of 64 columns by the fill
// from L2.
#pragma once

#include "gpu/launch.h"
#include "hopper/box_feed.h"
#include "hopper/node_order.h"
#include "hopper/row_feed.h"
#include "hopper/row_lister.h"
#include "hopper/tap_products.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksOfMultiprocessor)
    TapKernel(const __grid_constant__ TapPlan plan) {
  extern __shared__ char shared[];
  constexpr int kConsumers = Shape::kTeams * Shape::kConsumerThreads;
  const int thread = threadIdx.x;
  const int team = thread < kConsumers ? thread / Shape::kConsumerThreads
                                       : (thread - kConsumers) / Shape::kProducerThreads;
  const Pipe<Shape> pipe(shared, team);
  if (thread == kConsumers) {
    PrefetchTensorMap(&plan.weight);
    if constexpr (Shape::kSource == Source::kBoxes) PrefetchTensorMap(&plan.source[0]);
    for (int i = 0; i < Shape::kTeams; ++i) Pipe<Shape>(shared, i).Init();
    if constexpr (Shape::kSource == Source::kRows) RowsOf(pipe).ring.Init();
    if constexpr (Shape::kResident) LoadResident(plan, Pipe<Shape>(shared, 0));  // under way while nodes are sorted
  }
  if constexpr (Shape::kSource == Source::kBoxes && !Shape::kOnlyPixels) {
    if (plan.sorts) {
      using Scratch = SortScratch<Shape::kThreads, Shape::kSortedNodes>;
      static_assert(sizeof(Scratch) <= Shape::kStages * Shape::kStageBytes);
      SortNodes(plan.gemm, pipe.Order(), *reinterpret_cast<Scratch*>(Pipe<Shape>(shared, 0).A(0)));
      FenceAsyncProxy();  // copies follow to where the scratch was
    }
  }
  __syncthreads();
  if constexpr (Shape::kSplit > 1) SyncCluster();
  LaunchDependents();  // sums of hubs, which find room when the first blocks end
  const TileWalk<Shape> walk(plan, pipe.Order(), team);
  if (thread < kConsumers) {
    GrowRegisters<Shape::kConsumerRegisters>();
    Consumer<Shape>(plan, pipe, walk).Run();
  } else {
    ShrinkRegisters<Shape::kProducerRegisters>();
    if constexpr (Shape::kSource == Source::kRows) {
      RowTable& table = RowsOf(pipe);
      if constexpr (Shape::kListsApart) {
        if (thread < kConsumers + 128) {
          LayOutTiles(RowLister<Shape>(plan, table, walk), table.ring, walk);
        } else {
          RowFeeder(plan, pipe, walk, QueuedBatches(table.ring)).Run();
        }
      } else {
        RowFeeder(plan, pipe, walk, OwnBatches(table.ring, RowLister<Shape>(plan, table, walk))).Run();
      }
    } else if (team < Shape::kTeams) {
      BoxFeeder<Shape>(plan, pipe, walk).Run();
    }
  }
}

}  // namespace knnconv::hopper
