// The warpgroup that multiplies extra lines.
//
//     products [64 extra lines, columns] = lines @ B                                              (wgmma, in registers)
//     shared sums[the node of each line, or pair of lines] += its products,  pass by pass
//
// Each warp reads and writes the sums of the nodes whose lines it has, so that those who multiply rows meet them at a
// tile's end alone. In a pass no node has two lines, but for pairs, which a thread adds up first: so a node's products
// are added in one order. A pass takes mostly until reads of shared memory come back, which products and copies keep
// busy: so there are few, of all columns at once.
#pragma once

#include <cstdint>

#include "hopper/extra_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class LineConsumer {
 public:
  KNNCONV_DEVICE LineConsumer(const TapPlan& plan, const ExtraPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : pipe_(pipe), walk_(walk), line_(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth), sums_(pipe.Sums()) {
    const uint64_t lines = Describe<Major::kK>(pipe.Lines(0));
    lines_ = Uniform(lines);
    high_ = Uniform(lines >> 32);
    b_ = Uniform(Describe<Major::kK>(pipe.B(0)));
  }

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      bool is_first = true, last;
      do {
        const int stage = Multiply();
        const RoundNote<Shape>& note = pipe_.Note(stage);
        const int first_pass = note.first_pass, end_pass = note.end_pass;
        const LineMark marks[2] = {note.mark[line_], note.mark[line_ + 8]};
        last = note.last != 0;
        pipe_.Empty(stage).ArriveAsWarp();
        if (is_first && turn > 0) pipe_.WaitUntilTaken();
        is_first = false;
        Add(marks, first_pass, end_pass);
      } while (!last);
      pipe_.EndSums();
    }
  }

 private:
  // Adds a round's products.
  KNNCONV_DEVICE void Add(const LineMark (&marks)[2], int first_pass, int end_pass) {
    if (marks[0].row >= LineMark::kPair) AddPair();
    const int rows[2] = {marks[0].row % LineMark::kPair, marks[1].row % LineMark::kPair};
#pragma unroll 1
    for (int pass = first_pass / 2 * 2; pass < end_pass; pass += 2) {
      if (marks[0].pass == pass) sums_.template AddHalf<0>(rows[0], products_);
      Sync();
      if (marks[1].pass == pass + 1) sums_.template AddHalf<1>(rows[1], products_);
      Sync();
    }
  }

  KNNCONV_DEVICE static void Sync() { SyncThreads(2, 128); }

  // The lane's lines are a pair: both halves of products become their sum.
  KNNCONV_DEVICE void AddPair() {
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; i += 4) {
      products_[i] = products_[i + 2] += products_[i];
      products_[i + 1] = products_[i + 3] += products_[i + 1];
    }
  }

  // Multiplies the steps of a round; returns the last one's stage, which is the caller's to give back.
  KNNCONV_DEVICE int Multiply() {
    constexpr uint32_t kAdvance = kDepthAdvance<Major::kK>;
    int stage, previous = -1, step = 0;
    do {
      stage = place_.stage;
      const uint32_t place = stage * (Shape::kStageBytes / 16);
      pipe_.Full(stage).Wait(place_.parity);
      FenceAsyncProxy();  // threads have written lines, not the copy engine
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kStepDepth / kSliceDepth; ++slice) {
        MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Major::kK>(
            products_, Join(lines_ + place + slice * kAdvance, high_), Join(b_ + place + slice * kAdvance, high_),
            step > 0 || slice > 0);
      }
      CommitProducts();
      WaitForProducts<1>();
      if (previous >= 0) pipe_.Empty(previous).ArriveAsWarp();
      previous = stage;
      place_.Advance();
    } while (++step < steps_);
    WaitForProducts<0>();
    PinSums(products_);
    return stage;
  }

  const ExtraPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int line_;  // of the lane's first half of products; the second one's is 8 lines on
  const int steps_;
  const SharedSums<Shape::kColumns> sums_;
  uint32_t lines_, b_, high_;  // descriptions of the first stage's
  typename ExtraPipe<Shape>::Place place_;
  float products_[Shape::kColumns / 2];
};

}  // namespace knnconv::hopper
