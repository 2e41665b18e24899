// Weight and bias gradients on Hopper: one tile of dw over a stretch of its depth.
//
//     dw[r, o] = sum over positions:  x[source(position, slot of r), channel of r] * g[row(position), o]
//
//              positions (in steps of 64)                     columns, in boxes of 64
//     rows   [ x: box after box of 64 channels ]  @  positions [ g                    ]
//
// A step's boxes lie in shared memory as they lie in memory, a position a line of 128 bytes: both operands of the
// product are read along their lines (Major::kMN), so that nothing is transposed. A table gives the coordinates of x's
// boxes, 64 batch entries of one node; for a dense convolution boxes are 64 pixels, moved by the slot's offset, or
// strips (dweight_strips.h). A hole is a box outside the tensor: zeros, and nothing is read. Small batches over a table
// have a kernel of their own (dweight_gather.h).
//
// One warp issues copies, a lane a box; two warps sum g's columns for db; each of the other warpgroups multiplies its
// share of the tile. What bounds it: filling shared memory from L2, about 34 bytes a cycle, with rows + columns for
// rows * columns products, so tiles are as large as the registers hold. Strips give three times the products for what
// it takes to fill them; there the warpgroups compute dw^T, with the 192 channels of a strip's taps as columns. Partial
// sums leave as they lie in registers: 16 bytes a thread.
#pragma once

#include "hopper/dweight_bias.h"
#include "hopper/dweight_producer.h"
#include "hopper/dweight_products.h"
#include "hopper/dweight_task.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kRegisterShares)
    DweightKernel(const KNNCONV_PARAMETER CUtensorMap x, const KNNCONV_PARAMETER CUtensorMap g,
                  const KNNCONV_PARAMETER DweightTask task) {
  extern __shared__ unsigned char shared[];
  const DweightRing<Tile> ring(shared);
  const int warp = Uniform(static_cast<int>(threadIdx.x / 32)), warpgroup = warp / 4;
  if (threadIdx.x == 32) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      ring.full[stage].Init(1);
      ring.empty[stage].Init(4 * Tile::kWarpgroups + (task.SumsBoxes() ? kBiasWarps : 0));
    }
    FenceBarrierInit();
    FenceAsyncProxy();
    PrefetchTensorMap(&x);
    PrefetchTensorMap(&g);
    LaunchDependents();  // the reduction, whose blocks find room when the first of these end
  }
  DweightProducer<Tile> producer(task, &x, &g);
  if (warp == 0) producer.Begin();
  __syncthreads();
  if (warpgroup == 0) {
    if constexpr (Tile::kMovesRegisters) ShrinkRegisters<Tile::kProducerRegisters>();
    if (warp == 0) {
      producer.Run(ring);
    } else if (warp <= kBiasWarps && task.SumsBoxes()) {
      DweightBoxBias<T, Tile>(task, static_cast<int>(threadIdx.x) - 32).Run(ring);
    } else if (warp <= kBiasWarps && task.bias_partials != nullptr) {
      SumRows<T, false, 1>(task, 0, static_cast<int>(threadIdx.x) - 32);
    }
  } else {
    if constexpr (Tile::kMovesRegisters) GrowRegisters<Tile::kProductRegisters>();
    DweightProducts<T, Tile>(task, warpgroup - 1).Run(ring);
  }
}

}  // namespace knnconv::hopper
