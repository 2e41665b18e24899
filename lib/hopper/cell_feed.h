// The producers of cells: a warpgroup that sorts the taps of a tile's nodes by slot and gathers their rows of g.
//
// Each thread walks over one node's list. In each round, threads whose next slot is the least one give their taps of it;
// the taps of a warpgroup's 64 nodes are numbered node by node, and each becomes a line of the stage.
#pragma once

#include <climits>
#include <cstdint>

#include "hopper/cell_pipe.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

template <typename Shape>
class CellFeeder {
 public:
  KNNCONV_DEVICE CellFeeder(const TapPlan& plan, const CellPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), table_(pipe.Table()), thread_(threadIdx.x % 128),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth), reader_(plan.gemm, table_.reader, thread_) {}

  KNNCONV_DEVICE void Run() {
    reader_.Open(Next(0));
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      reader_.Enter();
      Feed(walk_.Tile(turn), Next(turn + 1));  // whose loads are under way in the first round
    }
    gpu::WaitForCopies<0>();
  }

 private:
  static constexpr int kBarrier = 1;  // of the producers

  // What is gathered for a slot: `lines` of the warpgroup's, of which `own` are the thread's node's.
  struct Round {
    int slot, lines;
    LineSpan own;
  };

  KNNCONV_DEVICE TapList Next(int64_t turn) const {
    return walk_.Has(turn) ? ListOf(plan_.gemm, walk_.Tile(turn).row_tile * Shape::kRows + thread_) : TapList{};
  }

  KNNCONV_DEVICE void Feed(const TapTile& tile, const TapList& next) {
    const int lane = thread_ % 32, warp = thread_ / 32, half = thread_ / Shape::kHalfRows;
    // The last round found waits to know whether it is the tile's last. A tile without taps has one, of zeros.
    Round held{gpu::kHole, 0, {0, 0}};
    bool holds = false, looks = true, is_first = true;
    int own_slot = 0, own_taps = 0;
    for (;;) {
      if (looks) {
        own_slot = reader_.left() > 0 ? reader_.Slot(0) : INT_MAX;
        own_taps = 1;
        const int most = min(reader_.left(), Shape::kMostTaps);
        while (own_taps < most && reader_.Slot(own_taps) == own_slot) ++own_taps;
      }
      __syncwarp();
      const int least = __reduce_min_sync(kAllLanes, own_slot);
      const int taps_of_least = __reduce_add_sync(kAllLanes, own_slot == least ? own_taps : 0);
      turn_ ^= 1;
      if (lane == 0) table_.next[turn_][warp] = make_int2(least, taps_of_least);
      SyncThreads(kBarrier, 128);
      int slot = INT_MAX;
#pragma unroll
      for (int w = 0; w < 4; ++w) slot = min(slot, table_.next[turn_][w].x);
      const bool ends = slot >= plan_.gemm.slots;
      if (holds || ends) LoadRound(tile, held, ends);
      if (is_first) reader_.Open(next);
      is_first = false;
      if (ends) break;
      holds = true;
      held = Take(slot, half, own_slot == slot ? own_taps : 0);
      looks = held.own.count > 0;
      reader_.EndRound();
    }
  }

  // Gives the warpgroup's next lines to taps of the slot, in the order of nodes: as many as the thread has and there
  // are.
  KNNCONV_DEVICE Round Take(int slot, int half, int taps) {
    const int lane = thread_ % 32;
    int end = taps;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, step);
      if (lane >= step) end += before;
    }
    const int2 even = table_.next[turn_][2 * half], odd = table_.next[turn_][2 * half + 1];
    const int of_even = even.x == slot ? even.y : 0, of_odd = odd.x == slot ? odd.y : 0;
    const int first = end - taps + (thread_ % Shape::kHalfRows >= 32 ? of_even : 0);
    const int count = max(0, min(taps, Shape::kLines - first));
    const int32_t batch_rows = reader_.list().batch_rows;
    for (int i = 0; i < count; ++i) {
      const int32_t source = reader_.Source(i);
      const bool is_row = gpu::IsRow(source, plan_.gemm.source_rows);
      table_.source[turn_][half][first + i] = is_row ? batch_rows + source : gpu::kHole;
    }
    reader_.Advance(count);
    const LineSpan own{static_cast<uint8_t>(count > 0 ? first : 0), static_cast<uint8_t>(count)};
    return {slot, min(of_even + of_odd, Shape::kLines), own};
  }

  // Loads the steps of a round.
  KNNCONV_DEVICE void LoadRound(const TapTile& tile, const Round& round, bool last) {
    constexpr int kChunk = 8, kThreadsOfLine = kStepDepth / kChunk, kLinesAtOnce = Shape::kHalfRows / kThreadsOfLine;
    const int row = thread_ % Shape::kHalfRows, chunk = row % kThreadsOfLine, lane = thread_ % 32;
    const int32_t* sources = table_.source[turn_ ^ 1][thread_ / Shape::kHalfRows];
    const int64_t line_bytes = int64_t{plan_.gemm.depth} * 2;
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool ends = last && step == steps_ - 1;
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      pipe_.Span(stage, row) = round.own;
      if (row == 0) pipe_.Note(stage) = StepNote{ends, false, 0, 0}.Pack();
      if (ends) {
        const uint32_t unwritten = __ballot_sync(kAllLanes, reader_.list().hub);
        if (lane == 0) pipe_.Unwritten(stage, row / 32) = unwritten;
      }
      if (thread_ == 0) {
        pipe_.EmptyWeights(weights_.stage).Wait(weights_.parity ^ 1);
        Barrier& full = pipe_.FullWeights(weights_.stage);
        full.ArriveExpecting(Shape::kBytesB);
        LoadBox(pipe_.B(weights_.stage), &plan_.weight, &full, channel, tile.first_column, round.slot);
        weights_.Advance();
      }
      __syncwarp();
      if (lane == 0) pipe_.Full(stage).Arrive();
      const bool in_depth = channel + chunk * kChunk < plan_.gemm.depth;
      const char* from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk * kChunk) * 2;
      const uint32_t to = SharedAddress(pipe_.Lines(stage));
#pragma unroll 4
      for (int line = row / kThreadsOfLine; line < round.lines; line += kLinesAtOnce) {
        const int32_t source = sources[line];
        const bool exists = in_depth && source >= 0;
        CopyChunk(to + line * 128 + ((chunk ^ line % 8) << 4), exists ? from + source * line_bytes : plan_.gemm.source,
                  exists);
      }
      pipe_.Full(stage).ArriveAfterCopies();
      place_.Advance();
    }
  }

  const TapPlan& plan_;
  const CellPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  CellTable<Shape>& table_;
  const int thread_, steps_;
  typename Shape::Reader reader_;
  typename CellPipe<Shape>::Place place_;
  typename CellPipe<Shape>::WeightPlace weights_;  // of the thread that loads them
  int turn_ = 0;
};

}  // namespace knnconv::hopper
