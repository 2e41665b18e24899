// Warpgroups that multiply rows and extra lines.
//
//     sums [64 nodes, columns] += rows @ B                                      (wgmma, fp32, in registers)
//     products [64 extra lines, half of the columns] = lines @ B                (wgmma, fp32, into shared memory)
//     sums += the products of each node's extra lines, in their order
#pragma once

#include <cstdint>

#include "hopper/extra_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/tap_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class ExtraConsumer {
 public:
  KNNCONV_DEVICE ExtraConsumer(const TapPlan& plan, const ExtraPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), half_(threadIdx.x / 128), warp_(threadIdx.x % 128 / 32),
        lane_(threadIdx.x % 32), writer_(plan, walk, pipe.Results()) {}

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
#pragma unroll
      for (float& sum : sums_[0]) sum = 0.0f;
      bool last, unwritten;
      do {
        const int stage = Multiply();
        const RoundNote<Shape>& note = pipe_.Note(stage);
        const int lines = note.lines, row = writer_.own_row();
        const LineSpan spans[2] = {note.span[FragmentRow(0)], note.span[FragmentRow(1)]};
        last = note.last != 0;
        unwritten = (note.unwritten[row / 32] >> row % 32 & 1) != 0;
        pipe_.Empty(stage).ArriveAsWarp();
        if (lines == 0) continue;
        Sync();  // all have added what was there
        if (16 * warp_ < lines) StoreProducts();
        Sync();
        AddProducts<0>(spans[0]);
        AddProducts<1>(spans[1]);
      } while (!last);
      writer_.Write(walk_.Tile(turn), sums_, unwritten, false);
    }
    writer_.Finish();
  }

 private:
  static constexpr int kHalfColumns = Shape::kColumns / Shape::kConsumers;

  // All consumers meet.
  KNNCONV_DEVICE static void Sync() { SyncThreads(2, Shape::kConsumerThreads); }

  // Multiplies the steps of a round; returns the last one's stage.
  KNNCONV_DEVICE int Multiply() {
    constexpr int kSlices = kStepDepth / kSliceDepth, kOwnBytes = 64 * kStepDepth * 2;
    constexpr int kHalfBytes = kHalfColumns * kStepDepth * 2;
    const int steps = (plan_.gemm.depth + kStepDepth - 1) / kStepDepth;
    int stage, previous = -1, step = 0;
    do {
      stage = place_.stage;
      pipe_.Full(stage).Wait(place_.parity);
      FenceAsyncProxy();  // threads have written lines, not the copy engine
      const uint64_t rows = Describe<Major::kK>(pipe_.Rows(stage) + half_ * kOwnBytes);
      const uint64_t lines = Describe<Major::kK>(pipe_.Lines(stage));
      const uint64_t b = Describe<Major::kK>(pipe_.B(stage));
      const uint64_t half_b = Describe<Major::kK>(pipe_.B(stage) + half_ * kHalfBytes);
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        constexpr uint64_t kAdvance = kDepthAdvance<Major::kK>;
        MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Major::kK>(sums_[0], rows + slice * kAdvance,
                                                                             b + slice * kAdvance);
        MultiplyAdd<typename Shape::T, kHalfColumns, Major::kK, Major::kK>(
            products_, lines + slice * kAdvance, half_b + slice * kAdvance, step > 0 || slice > 0);
      }
      CommitProducts();
      WaitForProducts<1>();
      if (previous >= 0) pipe_.Empty(previous).ArriveAsWarp();
      previous = stage;
      place_.Advance();
    } while (++step < steps);
    WaitForProducts<0>();
    PinSums(sums_[0]);
    PinSums(products_);
    return stage;
  }

  // The row of the tile that the lane has a part of in half `h` of its sums.
  KNNCONV_DEVICE int FragmentRow(int h) const { return 64 * half_ + 16 * warp_ + 8 * h + lane_ / 4; }

  // Where the lane's part of an extra line's products is.
  KNNCONV_DEVICE char* ProductsOf(int line, int first_column) const {
    return pipe_.Products() + line * Shape::kProductPitch + first_column * static_cast<int>(sizeof(float)) +
           lane_ % 4 * 8;
  }

  KNNCONV_DEVICE void StoreProducts() const {
    char* const to = ProductsOf(16 * warp_ + lane_ / 4, half_ * kHalfColumns);
#pragma unroll
    for (int j = 0; j < kHalfColumns / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const pair = products_ + 4 * j + 2 * h;
        *reinterpret_cast<float2*>(to + 8 * h * Shape::kProductPitch + 32 * j) = make_float2(pair[0], pair[1]);
      }
    }
  }

  // sums[half h] += the products of the extra lines in the span.
  template <int h>
  KNNCONV_DEVICE void AddProducts(LineSpan span) {
    constexpr int kAtOnce = 8;
    const char* from = ProductsOf(span.first, 0);
#pragma unroll 1
    for (int i = 0; i < span.count; ++i, from += Shape::kProductPitch) {
#pragma unroll
      for (int first = 0; first < Shape::kColumns / 8; first += kAtOnce) {
        float2 pairs[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) pairs[j] = *reinterpret_cast<const float2*>(from + 32 * (first + j));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          float* const sum = sums_[0] + 4 * (first + j) + 2 * h;
          sum[0] += pairs[j].x;
          sum[1] += pairs[j].y;
        }
      }
    }
    __syncwarp();
  }

  const TapPlan& plan_;
  const ExtraPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int half_, warp_, lane_;
  TileWriter<Shape> writer_;
  typename ExtraPipe<Shape>::Place place_;
  typename TileWriter<Shape>::Sums sums_;
  float products_[kHalfColumns / 2];
};

}  // namespace knnconv::hopper
