// The warpgroup that gathers rows of g, those of nodes and extra lines, round by round.
#pragma once

#include <cstdint>

#include "hopper/extra_pipe.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

template <typename Shape>
class ExtraFeeder {
 public:
  KNNCONV_DEVICE ExtraFeeder(const TapPlan& plan, const ExtraPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), thread_(threadIdx.x % 128), warp_(thread_ / 32), lane_(thread_ % 32),
        chunk_(thread_ % kThreadsOfLine), first_(thread_ / kThreadsOfLine),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth) {}

  KNNCONV_DEVICE void Run() {
    QueuedBatches rounds(pipe_.Table().ring);
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      bool last;
      do {
        const SortedRound& round = rounds.Take();
        last = round.last != 0;
        LoadRound(tile, round);
        rounds.Give();
      } while (!last);
    }
  }

 private:
  static constexpr int kChunk = 8, kThreadsOfLine = kStepDepth / kChunk;
  using Order = RoundOrder;
  static_assert(kExtraAtOnce == 128 / kThreadsOfLine && kExtraAtOnce % 8 == 0);

  // Source rows of the thread's share of kCount lines, where `from` has those of all.
  template <int kCount>
  struct Sources {
    static constexpr int kOwn = kCount / kExtraAtOnce;
    int4 four[kOwn / 4];

    KNNCONV_DEVICE Sources(const int32_t* from, int thread) {
#pragma unroll
      for (int i = 0; i < kOwn / 4; ++i) four[i] = reinterpret_cast<const int4*>(from + thread * kOwn)[i];
    }
    KNNCONV_DEVICE int32_t operator[](int i) const {
      const int32_t all[4] = {four[i / 4].x, four[i / 4].y, four[i / 4].z, four[i / 4].w};
      return all[i % 4];
    }
  };

  // Loads the steps of a round.
  KNNCONV_DEVICE void LoadRound(const TapTile& tile, const SortedRound& round) {
    const int32_t line_bytes = plan_.gemm.depth * 2;
    const Sources<Shape::kRows> rows(round.source, first_);
    const Sources<Shape::kLines> extra(round.source + Order::kFirstLine, first_);
    const int slot = round.slot;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int stage = place_.stage, channel = step * kStepDepth;
      const bool in_depth = channel + chunk_ * kChunk < plan_.gemm.depth;
      const char* const from = static_cast<const char*>(plan_.gemm.source) + (channel + chunk_ * kChunk) * 2;
      // Lines 8 apart have the same swizzle.
      const uint32_t place = first_ * 128 + ((chunk_ ^ first_ % 8) << 4);
      const uint32_t to = SharedAddress(pipe_.Rows(stage)) + place;
      const uint32_t to_extra = SharedAddress(pipe_.Lines(stage)) + place;
      Barrier& full = pipe_.Full(stage);
      pipe_.Empty(stage).Wait(place_.parity ^ 1);
      Announce(pipe_.Note(stage), round, step == steps_ - 1);
      full.ArriveAsWarp();
      if (lane_ == 0 && warp_ == static_cast<int>(loader_)) {
        full.ArriveExpecting(Shape::kBytesB);
        LoadWeights<Shape>(plan_, pipe_.B(stage), &full, tile, channel, slot);
      }
#pragma unroll
      for (int i = 0; i < rows.kOwn; ++i) {
        CopyChunk(to + i * kExtraAtOnce * 128, RowAt(from, rows[i], line_bytes), in_depth && rows[i] >= 0);
      }
#pragma unroll
      for (int i = 0; i < extra.kOwn; ++i) {  // what is no line gives products that nobody reads
        if (extra[i] >= 0) CopyChunk(to_extra + i * kExtraAtOnce * 128, RowAt(from, extra[i], line_bytes), in_depth);
      }
      full.ArriveAfterCopies();
      loader_ = (loader_ + 1) % 4u;
      place_.Advance();
    }
  }

  KNNCONV_DEVICE void Announce(RoundNote<Shape>& note, const SortedRound& round, bool ends) const {
    if (thread_ == 0) note.last = ends && round.last != 0;
    if (!ends) return;
    if (thread_ < Shape::kLines) note.mark[thread_] = round.mark[thread_];
    if (lane_ == 0) note.unwritten[warp_] = round.unwritten[warp_];
    if (thread_ == 0) {
      note.first_pass = round.first_pass;
      note.end_pass = round.end_pass;
    }
  }

  const TapPlan& plan_;
  const ExtraPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int thread_, warp_, lane_;
  const int chunk_, first_;  // of a line, and of the thread's lines
  const int steps_;
  typename ExtraPipe<Shape>::Place place_;
  uint32_t loader_ = 0;  // the warp that loads a step's weights: they take turns
};

}  // namespace knnconv::hopper
