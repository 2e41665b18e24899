// The consumers: warpgroups that multiply the steps of a tile as they arrive.
#pragma once

#include <cstdint>

#include "hopper/tap_pipe.h"
#include "hopper/tap_split.h"
#include "hopper/tap_tiles.h"
#include "hopper/tap_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class Consumer {
 public:
  KNNCONV_DEVICE Consumer(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : pipe_(pipe), walk_(walk), lane_(threadIdx.x % 32), writer_(plan, walk, pipe.Results()) {}

  KNNCONV_DEVICE void Run() {
    if constexpr (Shape::kResident) pipe_.Resident().Wait(0);
    [[maybe_unused]] SplitSums<Shape> split(pipe_, walk_.rank());
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      if (walk_.IsEmpty(tile)) continue;
      const RowEnd end = Multiply();
      if (Shape::kSource == Source::kBoxes && end.unwritten) continue;
      if constexpr (Shape::kStoresTogether) writer_.UseStage(pipe_.A(held_));
      const bool adds = walk_.Adds(turn);
      if constexpr (Shape::kSplit > 1) {
        if (adds) split.Add(sums_, &place_);
      }
      if constexpr (Shape::kLendsStage) {
        WriteFromStage(tile, end);
      } else {
        writer_.Write(tile, sums_, end.unwritten, end.dead, adds);
      }
    }
    writer_.Finish();
  }

 private:
  static constexpr Major kMajorB = Shape::kTransposed ? Major::kK : Major::kMN;

  // What becomes of the lane's own row.
  struct RowEnd {
    bool unwritten, dead;
  };

  // Adds up a tile's steps and returns what the last one says. A stage is given back once the next one's products are
  // under way. (Steps have one length: with branches around some of the products, the compiler makes each wait for the
  // last.)
  KNNCONV_DEVICE RowEnd Multiply() {
    ClearSums();
    int previous = -1;
    StepNote note;
    do {
      const int stage = place_.stage;
      pipe_.Full(stage).Wait(place_.parity);
      if constexpr (Shape::kSource == Source::kRows) FenceAsyncProxy();  // threads have written A, not the copy engine
      // By the lane that gives the stage back, so that the note is read before the next one is written.
      note = StepNote::Unpack(__shfl_sync(kAllLanes, lane_ == 0 ? pipe_.Note(stage) : 0, 0));
      const uint64_t a = Describe<Major::kK>(pipe_.A(stage) + writer_.first_row() * kStepDepth * 2);
      const uint64_t b = Describe<kMajorB>(Shape::kResident ? pipe_.Weights(HasSlot(note) ? note.slot : 0)
                                                            : pipe_.B(stage));
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kStepDepth / kSliceDepth; ++slice) MultiplySlice(a, b, slice);
      CommitProducts();
      WaitForProducts<1>();
      if (previous >= 0) {
        Release(previous);
      } else if constexpr (Shape::kStoresTogether) {
        ReleaseHeld();
      }
      previous = stage;
      place_.Advance();
    } while (!note.last);
    RowEnd end{note.unwritten, (note.dead >> writer_.own_row() / kBoxRows & 1) != 0};
    if constexpr (Shape::kSource == Source::kRows) {
      const RowMarks marks = pipe_.Marks(previous, writer_.own_row() / 32);
      end = {(marks.unwritten >> writer_.own_row() % 32 & 1) != 0, (marks.dead >> writer_.own_row() % 32 & 1) != 0};
    }
    WaitForProducts<0>();
    if constexpr (Shape::kStoresTogether) {
      held_ = previous;
      writer_.SyncWarpgroup();  // all of its products have read A
    } else {
      __syncwarp();  // all lanes have read the marks
      Release(previous);
    }
#pragma unroll
    for (auto& block : sums_) PinSums(block);
    if (Shape::kResident && !HasSlot(note)) ClearSums();  // zeros times a slot's weights, which need not be finite
    return end;
  }

  // Gives the stage back that holds the last tile's results, once stores have read them.
  KNNCONV_DEVICE void ReleaseHeld() {
    if (held_ < 0) return;
    FenceAsyncProxy();  // copies follow to where the warp has written
    __syncwarp();
    writer_.Finish();
    writer_.SyncWarpgroup();
    Release(held_);
    held_ = -1;
  }

  // Writes a tile by way of the stage behind its last step, which the producer leaves free.
  KNNCONV_DEVICE void WriteFromStage(const TapTile& tile, const RowEnd& end) {
    const int stage = place_.stage;
    pipe_.Full(stage).Wait(place_.parity);
    place_.Advance();
    writer_.UseLines(pipe_.A(stage));
    writer_.Write(tile, sums_, end.unwritten, end.dead);
    FenceAsyncProxy();  // copies follow
    __syncwarp();
    writer_.Finish();
    Release(stage);
  }

  // Whether a step has weights: that of a tile without taps has none.
  KNNCONV_DEVICE static bool HasSlot(const StepNote& note) { return note.slot < kResidentSlots; }

  KNNCONV_DEVICE void ClearSums() {
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (float& sum : block) sum = 0.0f;
    }
  }

  KNNCONV_DEVICE void MultiplySlice(uint64_t a, uint64_t b, int slice) {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      constexpr uint64_t kBlockAdvance = 64 * kStepDepth * 2 / 16;
      constexpr int kN = Shape::kProductColumns, kColumnAdvance = kStepDepth * 2 / 16;
#pragma unroll
      for (int first = 0; first < Shape::kColumns; first += kN) {
        MultiplyAdd<typename Shape::T, kN, Major::kK, kMajorB>(
            reinterpret_cast<float(&)[kN / 2]>(sums_[block][first / 2]),
            a + block * kBlockAdvance + slice * kDepthAdvance<Major::kK>,
            b + first * kColumnAdvance + slice * kDepthAdvance<kMajorB>);
      }
    }
  }

  KNNCONV_DEVICE void Release(int stage) const {
    if (lane_ == 0) pipe_.Empty(stage).Arrive();
  }

  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int lane_;
  TileWriter<Shape> writer_;
  typename Pipe<Shape>::Place place_;
  typename TileWriter<Shape>::Sums sums_;
  int held_ = -1;  // the stage of the last step, where results are stored together
};

}  // namespace knnconv::hopper
