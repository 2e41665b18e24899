// The consumers of cells: warpgroups that add the lines of each node's taps and multiply the sums.
//
//     A_high [64, 64] = round(sum),  A_low = round(sum - A_high):  (A_high + A_low) @ B is exact to 2^-17
//
// Lines are read as the tensor core wants A in registers (ldmatrix), so that sums need not pass through memory again.
// The next step's lines are added, and the sums split, while this one's products are under way.
#pragma once

#include <cstdint>

#include "hopper/cell_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/tap_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class CellConsumer {
 public:
  KNNCONV_DEVICE CellConsumer(const TapPlan& plan, const CellPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : pipe_(pipe), walk_(walk), lane_(threadIdx.x % 32),
        zero_(*reinterpret_cast<const volatile uint32_t*>(pipe.Zeros())), writer_(plan, walk, pipe.Results()) {}

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const bool unwritten = Multiply();
      writer_.Write(walk_.Tile(turn), sums_, unwritten, false);
    }
    writer_.Finish();
  }

 private:
  static constexpr int kSlices = kStepDepth / kSliceDepth, kPairs = 4;  // of a step; registers of a slice
  static constexpr int kFirstTaps = 3;  // that are added at once, zeros where rows have fewer
  using Fragment = uint32_t[kSlices][kPairs];
  using Lines = float[kSlices][2 * kPairs];

  // A row's lines in a stage.
  struct Place {
    const char* stage;
    int first, count;
  };

  // Adds up a tile's steps; returns whether somebody else writes the lane's own row.
  KNNCONV_DEVICE bool Multiply() {
#pragma unroll
    for (float& sum : sums_[0]) sum = 0.0f;
    const int row = writer_.own_row() % Shape::kHalfRows;
    Fragment high{}, low{};
    int previous = -1;
    bool last, unwritten = false;
    do {
      const int stage = place_.stage;
      pipe_.Full(stage).Wait(place_.parity);
      last = StepNote::Unpack(pipe_.Note(stage)).last;
      if (last) unwritten = (pipe_.Unwritten(stage, row / 32) >> row % 32 & 1) != 0;
      const LineSpan span = pipe_.Span(stage, row);
      Lines lines;
      AddLines({pipe_.Lines(stage), span.first, span.count}, lines);
      __syncwarp();
      if (lane_ == 0) pipe_.Empty(stage).Arrive();
      place_.Advance();

      Fragment next_high, next_low;
      Split(lines, next_high, next_low);
      WaitForProducts<0>();
      if (previous >= 0) Release(previous);
      Replace(next_high, high);
      Replace(next_low, low);
      previous = weights_.stage;
      pipe_.FullWeights(previous).Wait(weights_.parity);
      const uint64_t b = Describe<Major::kK>(pipe_.B(previous));
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const uint64_t at = b + slice * kDepthAdvance<Major::kK>;
        MultiplyAdd<gpu::BFloat, Shape::kColumns, Major::kK>(sums_[0], high[slice], at);
        MultiplyAdd<gpu::BFloat, Shape::kColumns, Major::kK>(sums_[0], low[slice], at);
      }
      CommitProducts();
      weights_.Advance();
    } while (!last);
    WaitForProducts<0>();
    Release(previous);
    PinSums(sums_[0]);
    return unwritten;
  }

  // The lane's part of slice 0 of the row's line i, a line of zeros behind the last.
  KNNCONV_DEVICE uint32_t LineAt(const Place& place, int i) const {
    const int number = place.first + i;
    const char* const line = i < place.count ? place.stage + number * 128 : pipe_.Zeros();
    return SharedAddress(line) + ((lane_ / 16 ^ number % 8) << 4);
  }

  // lines = the sum of the row's lines, for each of the warp's rows. A bfloat16 is the upper half of a float.
  KNNCONV_DEVICE void AddLines(const Place& place, Lines& lines) const {
    uint32_t at[kFirstTaps];
#pragma unroll
    for (int i = 0; i < kFirstTaps; ++i) at[i] = LineAt(place, i);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      uint32_t pair[kFirstTaps][kPairs];
#pragma unroll
      for (int i = 0; i < kFirstTaps; ++i) LoadMatrices(pair[i], at[i] ^ slice << 5);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        lines[slice][2 * p] = __uint_as_float(pair[0][p] << 16);
        lines[slice][2 * p + 1] = __uint_as_float(pair[0][p] & 0xffff0000u);
      }
#pragma unroll
      for (int i = 1; i < kFirstTaps; ++i) AddPairs(pair[i], lines[slice]);
    }
    const int most = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(place.count)));
#pragma unroll 1
    for (int i = kFirstTaps; i < most; ++i) {
      const uint32_t next = LineAt(place, i);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        uint32_t pair[kPairs];
        LoadMatrices(pair, next ^ slice << 5);
        AddPairs(pair, lines[slice]);
      }
    }
  }

  KNNCONV_DEVICE static void AddPairs(const uint32_t (&pair)[kPairs], float (&sums)[2 * kPairs]) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      sums[2 * p] += __uint_as_float(pair[p] << 16);
      sums[2 * p + 1] += __uint_as_float(pair[p] & 0xffff0000u);
    }
  }

  KNNCONV_DEVICE static void LoadMatrices(uint32_t (&pair)[kPairs], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pair[0]), "=r"(pair[1]), "=r"(pair[2]), "=r"(pair[3])
                 : "r"(at)
                 : "memory");
  }

  KNNCONV_DEVICE static void Split(const Lines& lines, Fragment& high, Fragment& low) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float first = lines[slice][2 * p], second = lines[slice][2 * p + 1];
        const uint32_t pair = Round(first, second);
        high[slice][p] = pair;
        low[slice][p] = Finite(Round(first - __uint_as_float(pair << 16), second - __uint_as_float(pair & 0xffff0000u)));
      }
    }
  }

  // fragment = next, in a way that needs the old one: while products read its registers, the compiler would use them for
  // other things, and compute the next one there.
  KNNCONV_DEVICE void Replace(const Fragment& next, Fragment& fragment) const {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) fragment[slice][p] = next[slice][p] | (fragment[slice][p] & zero_);
    }
  }

  // The finite ones of a pair, zeros for others: infinities have no low part.
  KNNCONV_DEVICE static uint32_t Finite(uint32_t pair) {
    uint32_t is_finite;  // ones
    constexpr uint32_t kMost = 0x7f7f7f7f;
    asm("set.le.u32.bf16x2 %0, %1, %2;" : "=r"(is_finite) : "r"(pair & 0x7fff7fffu), "r"(kMost));
    return pair & is_finite;
  }

  KNNCONV_DEVICE static uint32_t Round(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  KNNCONV_DEVICE void Release(int stage) const {
    if (lane_ == 0) pipe_.EmptyWeights(stage).Arrive();
  }

  const CellPipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int lane_;
  const uint32_t zero_;  // which the compiler does not know
  TileWriter<Shape> writer_;
  typename CellPipe<Shape>::Place place_;
  typename CellPipe<Shape>::WeightPlace weights_;
  typename TileWriter<Shape>::Sums sums_;
};

}  // namespace knnconv::hopper
