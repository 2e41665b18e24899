// The kernel of a TapGemm on Hopper: forward and dinput, dense and KNN.
//
//     for each tile [rows, columns] of the result, for each tap and 64 of its channels:
//         A [rows, 64] = the tap's source rows,  B [64, columns] = the slot's weight rows       (TMA, a ring of stages)
//         sums += A @ B                                                                         (wgmma, fp32)
//     out = round(sums + bias)
//
// A block stays on its multiprocessor and takes every so manyth tile, so that the next tile's steps are on their way while
// one is written. Large tiles are bound by the products (and the chip's power), tiles of 64 columns by the fill from L2.
#pragma once

#include "gpu/launch.h"
#include "hopper/box_feed.h"
#include "hopper/row_feed.h"
#include "hopper/tap_products.h"

namespace knnconv::hopper {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksOfMultiprocessor)
    TapKernel(const __grid_constant__ TapPlan plan) {
  extern __shared__ char shared[];
  const Pipe<Shape> pipe(shared);
  if (threadIdx.x == 0) pipe.Init();
  __syncthreads();
  if (threadIdx.x < 128 * Shape::kConsumers) {
    Consumer<Shape>(plan, pipe).Run();
  } else if constexpr (Shape::kSource == Source::kRows) {
    RowFeeder<Shape>(plan, pipe).Run();
  } else {
    BoxFeeder<Shape>(plan, pipe).Run();
  }
}

}  // namespace knnconv::hopper
