// The warpgroup that gathers the rows of tiles whose rows are different nodes, one by one, layer by layer.
//
// Eight threads copy a line of 128 bytes, each 16. Random rows arrive from L2 as fast as the copy engine's boxes do (36
// bytes a cycle of an H200's multiprocessor; one copy of the engine for each row brings a quarter of that), as long as
// the warpgroup's own instructions do not hold them up. So layers are laid out by another one, except where registers
// for a fourth warpgroup are lacking.
#pragma once

#include <cstdint>

#include "gpu/lanes.h"
#include "hopper/row_lister.h"
#include "hopper/row_table.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// Batches: QueuedBatches or OwnBatches.
template <typename Shape, typename Batches>
class RowFeeder {
 public:
  KNNCONV_DEVICE RowFeeder(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk, Batches batches)
      : plan_(plan), pipe_(pipe), walk_(walk), batches_(batches), warp_(threadIdx.x % 128 / 32),
        lane_(threadIdx.x % 32), chunk_(threadIdx.x % kThreadsOfRow), first_(threadIdx.x % 128 / kThreadsOfRow),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth) {}

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      batches_.Begin(turn);
      Feed(walk_.Tile(turn));
    }
    batches_.Finish();
  }

 private:
  static constexpr int kChunk = 8, kThreadsOfRow = kStepDepth / kChunk, kRowsAtOnce = 128 / kThreadsOfRow;
  static constexpr int kRowsOfThread = kBoxRows / kRowsAtOnce;
  static_assert(kRowsAtOnce == 16 && kRowsOfThread == 8);

  // A layer that waits to know whether it is the tile's last: the thread's rows.
  struct Layer {
    int4 source[kRowsOfThread / 4];
    int32_t slot;
  };

  KNNCONV_DEVICE void Feed(const TapTile& tile) {
    const int4 holes = make_int4(gpu::kHole, gpu::kHole, gpu::kHole, gpu::kHole);
    Layer held{{holes, holes}, gpu::kHole};  // a tile without taps has one layer, of zeros
    RowMarks marks;
    bool ends;
    do {
      const RowBatch& batch = batches_.Take();
#pragma unroll 1
      for (uint32_t live = batch.live[0] | batch.live[1] | batch.live[2] | batch.live[3]; live != 0; live &= live - 1) {
        const int layer = __ffs(static_cast<int>(live)) - 1;
        if (held.slot >= 0) LoadLayer(tile, held, false, {});
        const auto* const rows = reinterpret_cast<const int4*>(batch.source[layer][first_]);
        held = {{rows[0], rows[1]}, batch.slot[layer]};
      }
      ends = batch.ends != 0;
      marks = batch.marks[warp_];
      batches_.Give();
    } while (!ends);
    LoadLayer(tile, held, true, marks);
  }

  // Loads the steps of a layer; zeros if its slot is a hole.
  KNNCONV_DEVICE void LoadLayer(const TapTile& tile, const Layer& layer, bool last, const RowMarks& marks) {
    const int32_t row_bytes = plan_.gemm.depth * 2;
    const int32_t source[kRowsOfThread] = {layer.source[0].x, layer.source[0].y, layer.source[0].z, layer.source[0].w,
                                           layer.source[1].x, layer.source[1].y, layer.source[1].z, layer.source[1].w};
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      const char* const from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk_ * kChunk) * 2;
      const char* at[kRowsOfThread];
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) at[i] = RowAt(from, source[i], row_bytes);
      const bool in_depth = layer.slot >= 0 && channel + chunk_ * kChunk < plan_.gemm.depth;
      // Rows 8 apart have the same swizzle.
      const uint32_t to = SharedAddress(pipe_.A(stage)) + first_ * 128 + ((chunk_ ^ first_ % 8) << 4);
      Barrier& full = pipe_.Full(stage);
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      if (lane_ == 0) {
        if (ends) pipe_.Marks(stage, warp_) = marks;
        if (warp_ == static_cast<int>(loader_)) {
          pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
          full.ArriveExpecting(Shape::kBytesB);
          LoadWeights<Shape>(plan_, pipe_.B(stage), &full, tile, channel, layer.slot);
        } else {
          full.Arrive();
        }
      }
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        CopyChunk(to + i * kRowsAtOnce * 128, at[i], in_depth && source[i] >= 0);
      }
      full.ArriveAfterCopies();
      loader_ = (loader_ + 1) % 4u;
      place_.Advance();
    }
  }

  const TapPlan& plan_;
  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  Batches batches_;
  const int warp_, lane_;
  const int chunk_, first_;  // of a line, and of the thread's rows
  const int steps_;
  typename Pipe<Shape>::Place place_;
  uint32_t loader_ = 0;  // the warp that loads a step's weights: they take turns
};

}  // namespace knnconv::hopper
