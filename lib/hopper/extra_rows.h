// The warpgroup that multiplies rows, and writes tiles.
//
//     sums [128 nodes, columns] += rows @ B                                         (wgmma, fp32, in registers)
//     at a tile's end: sums += the shared sums of its extra lines
#pragma once

#include <cstdint>

#include "hopper/extra_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/tap_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class RowConsumer {
 public:
  KNNCONV_DEVICE RowConsumer(const TapPlan& plan, const ExtraPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : pipe_(pipe), walk_(walk), line_sums_(pipe.Sums()), writer_(plan, walk, pipe.Results()),
        lane_row_(writer_.first_row() + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) {
    const uint64_t rows = Describe<Major::kK>(pipe.Rows(0) + writer_.first_row() * (kStepDepth * 2));
    rows_ = Uniform(rows);
    high_ = Uniform(rows >> 32);
    b_ = Uniform(Describe<Major::kK>(pipe.B(0)));
  }

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const bool unwritten = Multiply();
      pipe_.WaitForSums();
#pragma unroll
      for (int block = 0; block < Shape::kBlocks; ++block) line_sums_.Take(64 * block + lane_row_, sums_[block]);
      if (walk_.Has(turn + 1)) pipe_.EndTaking();
      writer_.Write(walk_.Tile(turn), sums_, unwritten, false);
    }
  }

 private:
  // Multiplies a tile's steps. A stage is given back once the next one's products are under way. Returns whether the
  // row stays unwritten that the lane looks up.
  KNNCONV_DEVICE bool Multiply() {
    constexpr uint32_t kAdvance = kDepthAdvance<Major::kK>, kBlockAdvance = 64 * kStepDepth * 2 / 16;
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (float& sum : block) sum = 0.0f;
    }
    int previous = -1;
    bool last;
    do {
      const int stage = place_.stage;
      const uint32_t place = stage * (Shape::kStageBytes / 16);
      pipe_.Full(stage).Wait(place_.parity);
      FenceAsyncProxy();  // threads have written rows, not the copy engine
      last = pipe_.Note(stage).last != 0;
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kStepDepth / kSliceDepth; ++slice) {
#pragma unroll
        for (int block = 0; block < Shape::kBlocks; ++block) {
          MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Major::kK>(
              sums_[block], Join(rows_ + place + block * kBlockAdvance + slice * kAdvance, high_),
              Join(b_ + place + slice * kAdvance, high_));
        }
      }
      CommitProducts();
      WaitForProducts<1>();
      if (previous >= 0) pipe_.Empty(previous).ArriveAsWarp();
      previous = stage;
      place_.Advance();
    } while (!last);
    const int row = writer_.own_row();
    const bool unwritten = (pipe_.Note(previous).unwritten[row / 32] >> row % 32 & 1) != 0;
    WaitForProducts<0>();
    pipe_.Empty(previous).ArriveAsWarp();
#pragma unroll
    for (auto& block : sums_) PinSums(block);
    return unwritten;
  }

  const ExtraPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const SharedSums<Shape::kColumns> line_sums_;
  TileWriter<Shape> writer_;
  const int lane_row_;        // of the tile, the lane's first
  uint32_t rows_, b_, high_;  // descriptions of the first stage's
  typename ExtraPipe<Shape>::Place place_;
  typename TileWriter<Shape>::Sums sums_;
};

}  // namespace knnconv::hopper
