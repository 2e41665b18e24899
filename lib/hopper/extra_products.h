// Warpgroups that multiply rows and extra lines.
//
//     products [64 extra lines, half of the columns] = lines @ B                (wgmma, fp32, into shared memory)
//     sums [64 nodes, columns] += rows @ B                                      (wgmma, fp32, in registers)
//     sums += the products of each node's extra lines, in their order
//
// Products of lines are computed first in each step, so that they are stored while those of rows are under way.
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
      : pipe_(pipe), walk_(walk), half_(threadIdx.x / 128), warp_(threadIdx.x % 128 / 32), lane_(threadIdx.x % 32),
        steps_((plan.gemm.depth + kStepDepth - 1) / kStepDepth),
        products_at_(SharedAddress(pipe.Products()) + lane_ % 4 * 16), writer_(plan, walk, pipe.Products()) {
    const uint64_t rows = Describe<Major::kK>(pipe.Rows(0) + half_ * (64 * kStepDepth * 2));
    rows_ = Uniform(rows);
    high_ = Uniform(rows >> 32);
    lines_ = Uniform(Describe<Major::kK>(pipe.Lines(0)));
    b_ = Uniform(Describe<Major::kK>(pipe.B(0)));
    half_b_ = Uniform(Describe<Major::kK>(pipe.B(0) + half_ * (kHalfColumns * kStepDepth * 2)));
  }

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
        writer_.Finish();
        Sync();  // all have added what was there, or stored it
        if (16 * warp_ < lines) StoreProducts();
        WaitForProducts<0>();
        PinSums(sums_[0]);
        pipe_.Empty(stage).ArriveAsWarp();
        Sync();
        AddProducts(spans);
      } while (!last);
      Sync();  // all have added
      writer_.Write(walk_.Tile(turn), sums_, unwritten, false);
    }
    writer_.Finish();
  }

 private:
  static constexpr int kHalfColumns = Shape::kColumns / Shape::kConsumers;

  // All consumers meet.
  KNNCONV_DEVICE static void Sync() { SyncThreads(2, Shape::kConsumerThreads); }

  // Multiplies the steps of a round; returns the last one's stage. Products of extra lines are done then, those of rows
  // under way.
  KNNCONV_DEVICE int Multiply() {
    constexpr int kSlices = kStepDepth / kSliceDepth;
    constexpr uint32_t kAdvance = kDepthAdvance<Major::kK>;
    int stage, previous = -1, step = 0;
    do {
      stage = place_.stage;
      const uint32_t place = stage * (Shape::kStageBytes / 16);
      pipe_.Full(stage).Wait(place_.parity);
      FenceAsyncProxy();  // threads have written lines, not the copy engine
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        MultiplyAdd<typename Shape::T, kHalfColumns, Major::kK, Major::kK>(
            products_, Join(lines_ + place + slice * kAdvance, high_), Join(half_b_ + place + slice * kAdvance, high_),
            step > 0 || slice > 0);
      }
      CommitProducts();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Major::kK>(
            sums_[0], Join(rows_ + place + slice * kAdvance, high_), Join(b_ + place + slice * kAdvance, high_));
      }
      CommitProducts();
      WaitForProducts<2>();
      if (previous >= 0) pipe_.Empty(previous).ArriveAsWarp();
      previous = stage;
      place_.Advance();
    } while (++step < steps_);
    WaitForProducts<1>();
    PinSums(products_);
    return stage;
  }

  // The row of the tile that the lane has a part of in half `h` of its sums.
  KNNCONV_DEVICE int FragmentRow(int h) const { return 64 * half_ + 16 * warp_ + 8 * h + lane_ / 4; }

  // Where the lane's part of an extra line's products is: of each 16 columns its four, 16 bytes. Of odd lines, 64 bytes
  // change places with the next 64, so that those of two lines, read or written at once, meet all banks.
  struct LinePart {
    uint32_t even, odd;  // of 16 columns, an even number of times 16 from the first

    KNNCONV_DEVICE uint32_t At(int i) const { return (i % 2 == 0 ? even : odd) + 64 * i; }
  };

  KNNCONV_DEVICE LinePart PartOf(int line) const {
    const uint32_t at = products_at_ + line * Shape::kProductPitch, shift = line % 2 * 64;
    return {at + shift, at - shift};
  }

  KNNCONV_DEVICE void StoreProducts() const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const LinePart to = PartOf(16 * warp_ + 8 * h + lane_ / 4);
      const uint32_t first = half_ * (kHalfColumns * 4);
#pragma unroll
      for (int i = 0; i < kHalfColumns / 16; ++i) {
        const float* const four = products_ + 8 * i + 2 * h;
        StoreFour(to.At(i) + first, four[0], four[1], four[4], four[5]);
      }
    }
  }

  KNNCONV_DEVICE static void StoreFour(uint32_t to, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
  }

  // sums += the products of the extra lines in the spans, first those of half 0 of the lane's sums. A read takes shared
  // memory as long for few lanes as for all 32: so each lane reads its next line, whichever half it is for.
  KNNCONV_DEVICE void AddProducts(const LineSpan (&spans)[2]) {
    constexpr int kFours = Shape::kColumns / 16;
    const int first = spans[0].count, all = first + spans[1].count, most = __reduce_max_sync(kAllLanes, all);
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      const bool is_first = i < first;
      const LinePart from = PartOf(is_first ? spans[0].first + i : spans[1].first + i - first);
      float4 fours[kFours];
#pragma unroll
      for (int j = 0; j < kFours; ++j) fours[j] = LoadFour(from.At(j), i < all);
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        float* const sum = sums_[0] + 8 * j;
        AddToOne(sum[0], sum[2], fours[j].x, is_first);
        AddToOne(sum[1], sum[3], fours[j].y, is_first);
        AddToOne(sum[4], sum[6], fours[j].z, is_first);
        AddToOne(sum[5], sum[7], fours[j].w, is_first);
      }
    }
  }

  // Zeros where there is nothing to load.
  KNNCONV_DEVICE static float4 LoadFour(uint32_t from, bool exists) {
    float4 four;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
        "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\nmov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
        "@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&f"(four.x), "=&f"(four.y), "=&f"(four.z), "=&f"(four.w)
        : "r"(from), "r"(exists ? 1 : 0)
        : "memory");
    return four;
  }

  // By predicates: a branch for each line would keep others waiting.
  KNNCONV_DEVICE static void AddToOne(float& sum, float& other, float value, bool to_sum) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p add.f32 %0, %0, %2;\n@!p add.f32 %1, %1, %2;\n}"
        : "+f"(sum), "+f"(other)
        : "f"(value), "r"(to_sum ? 1 : 0));
  }

  const ExtraPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int half_, warp_, lane_;
  const int steps_;
  const uint32_t products_at_;
  uint32_t rows_, lines_, b_, half_b_, high_;  // descriptions of the first stage's
  TileWriter<Shape> writer_;
  typename ExtraPipe<Shape>::Place place_;
  typename TileWriter<Shape>::Sums sums_;
  float products_[kHalfColumns / 2];
};

}  // namespace knnconv::hopper
