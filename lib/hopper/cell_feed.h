// The warpgroup that gathers rows of g for cells, line by line, round by round.
//
// Half of it serves each consuming warpgroup. Slots are sorted by another one.
#pragma once

#include <cstdint>

#include "hopper/cell_pipe.h"
#include "hopper/cell_sorter.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

template <typename Shape>
class CellFeeder {
 public:
  KNNCONV_DEVICE CellFeeder(const TapPlan& plan, const CellPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), batches_(pipe.Table().ring),
        thread_(threadIdx.x % 128), warp_(thread_ / 32),
        lane_(thread_ % 32), half_(thread_ / Shape::kHalfRows),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth) {}

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      bool more;
      do {
        const CellBatch<Shape>& batch = batches_.Take();
        more = batch.more != 0;
        const uint32_t live = batch.live;
#pragma unroll 1
        for (int i = 0; i < Shape::kSlots && live >> 8 * i != 0; ++i) {
          if (Byte(live, i) == 0) continue;
          const bool last = !more && (i == Shape::kSlots - 1 || live >> 8 * (i + 1) == 0);
          LoadRound(tile, batch, i, last);
        }
        batches_.Give();
      } while (more);
    }
  }

 private:
  // Loads the steps of a round, the lines of sorted slot `sorted`.
  KNNCONV_DEVICE void LoadRound(const TapTile& tile, const CellBatch<Shape>& batch, int sorted, bool last) {
    constexpr int kChunk = 8, kThreadsOfLine = kStepDepth / kChunk, kMost = Shape::kLines / kLinesAtOnce;
    static_assert(kLinesAtOnce == Shape::kHalfRows / kThreadsOfLine && kLinesAtOnce % 8 == 0 && kMost % 4 == 0);
    const int row = thread_ % Shape::kHalfRows, chunk = row % kThreadsOfLine, first = row / kThreadsOfLine;
    const int32_t line_bytes = plan_.gemm.depth * 2;
    int4 source[kMost / 4];
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) source[i] = batch.source[sorted][half_][first][i];
    const int lines = Byte(batch.lines[half_], sorted);
    const int slot = batch.first_slot < 0 ? gpu::kHole : batch.first_slot + sorted;
    const LineSpan own = batch.span[sorted][thread_];
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      const bool in_depth = channel + chunk * kChunk < plan_.gemm.depth;
      const char* const from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk * kChunk) * 2;
      // Lines 8 apart have the same swizzle.
      const uint32_t to = SharedAddress(pipe_.Lines(stage)) + first * 128 + ((chunk ^ first % 8) << 4);
      Barrier& full = pipe_.Full(stage);
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kMost / 4; ++i) {
        if (4 * i * kLinesAtOnce >= lines) break;
        const int32_t four[4] = {source[i].x, source[i].y, source[i].z, source[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // lines behind the last are zeros that nobody reads
          const int line = (4 * i + j) * kLinesAtOnce;
          CopyChunk(to + line * 128, RowAt(from, four[j], line_bytes), in_depth && first + line < lines);
        }
      }
      full.ArriveAfterCopies();
      pipe_.Span(stage, row) = own;
      if (row == 0) pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
      if (ends && lane_ == 0) pipe_.Unwritten(stage, row / 32) = batch.unwritten[warp_];
      full.ArriveAsWarp();
      pipe_.EmptyWeights(weights_.stage).Wait(weights_.parity ^ 1);  // all warps, so that none is a round ahead
      if (lane_ == 0 && warp_ == static_cast<int>(loader_)) {
        Barrier& full_weights = pipe_.FullWeights(weights_.stage);
        full_weights.ArriveExpecting(Shape::kBytesB);
        LoadWeights<Shape>(plan_, pipe_.B(weights_.stage), &full_weights, tile, channel, slot);
      }
      loader_ = (loader_ + 1) % 4u;
      weights_.Advance();
      place_.Advance();
    }
  }

  const TapPlan& plan_;
  const CellPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  QueuedBatches<typename CellTable<Shape>::Ring> batches_;
  const int thread_, warp_, lane_, half_, steps_;
  typename CellPipe<Shape>::Place place_;
  typename CellPipe<Shape>::WeightPlace weights_;
  uint32_t loader_ = 0;  // the warp that loads a step's weights: they take turns
};

}  // namespace knnconv::hopper
