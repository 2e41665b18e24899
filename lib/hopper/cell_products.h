// The consumers of cells: warpgroups that add the lines of each node's taps and multiply the sums.
//
//     A_high [64, 64] = round(sum),  A_low = round(sum - A_high):  (A_high + A_low) @ B is exact to 2^-17
//
// Lines are read as the tensor core wants A in registers (ldmatrix), so that sums need not pass through memory again.
// The next step's lines are added, and the sums split, while this one's products are under way.
#pragma once

#include <cstdint>

#include "gpu/matrix_ops.h"
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
  static constexpr int kRows = 16;  // of a warp
  using Fragment = uint32_t[kSlices][kPairs];
  using Lines = float[kSlices][2][4];  // of a slice, 8 columns as gpu/matrix_ops.h has them, and 8 more

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
      Lines lines;
      Fragment next_high, next_low;
      AddLines(stage, lines);
      Split(lines, next_high, next_low);
      if (__any_sync(kAllLanes, !IsFinite(next_high))) {
        AddOneByOne(stage, lines);
        Split(lines, next_high, next_low);
        KeepFinite(next_low);
      }
      pipe_.Empty(stage).ArriveAsWarp();
      place_.Advance();

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

  // lines = the sum of the row's lines, for each of the warp's rows; NaN in all of them where one line is not finite.
  KNNCONV_DEVICE void AddLines(int stage, Lines& lines) const {
    const int row = Row(lane_ / 4), first = pipe_.Span(stage, Row(0)).first;
    const LineSpan last = pipe_.Span(stage, Row(kRows - 1)), upper = pipe_.Span(stage, row),
                   lower = pipe_.Span(stage, row + 8);
    const int end = min(last.first + last.count, Shape::kLines);
    Clear(lines);
    int begin = first;
#pragma unroll 1
    do {
      const int from = begin + lane_ % 4 * 2;
      const uint32_t ones[4] = {Ones(from, upper), Ones(from, lower), Ones(from + 8, upper), Ones(from + 8, lower)};
      const int number = begin + lane_ % kRows;
      const uint32_t at = LineAt(stage, number < end ? number : kNoLine);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        uint32_t pair[kPairs];
        LoadMatrices<true>(pair, at ^ slice << 5);
        gpu::Multiply16x8<gpu::BFloat>(lines[slice][0], ones, pair[0], pair[1]);
        gpu::Multiply16x8<gpu::BFloat>(lines[slice][1], ones, pair[2], pair[3]);
      }
      begin += kRows;
    } while (begin < end);
  }

  KNNCONV_DEVICE static void Clear(Lines& lines) {
#pragma unroll
    for (auto& slice : lines) {
#pragma unroll
      for (auto& half : slice) {
#pragma unroll
        for (float& value : half) value = 0.0f;
      }
    }
  }

  // Two bfloat16: one where a line is the row's, zero where not.
  KNNCONV_DEVICE static uint32_t Ones(int line, LineSpan span) {
    const auto at = static_cast<uint32_t>(line - span.first);
    return (at < span.count ? 0x3f80u : 0) | (at + 1 < span.count ? 0x3f800000u : 0);
  }

  // The same sums, line by line: what is not finite reaches its own row alone.
  KNNCONV_DEVICE void AddOneByOne(int stage, Lines& lines) const {
    const LineSpan span = pipe_.Span(stage, Row(lane_ % kRows));
    const int most = static_cast<int>(__reduce_max_sync(kAllLanes, uint32_t{span.count}));
    Clear(lines);
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      const uint32_t at = LineAt(stage, i < span.count ? span.first + i : kNoLine);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        uint32_t pair[kPairs];
        LoadMatrices<false>(pair, at ^ slice << 5);
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {  // a bfloat16 is the upper half of a float
          lines[slice][p / 2][p % 2 * 2] += __uint_as_float(pair[p] << 16);
          lines[slice][p / 2][p % 2 * 2 + 1] += __uint_as_float(pair[p] & 0xffff0000u);
        }
      }
    }
  }

  // The warpgroup's row that is row `row` of the warp.
  KNNCONV_DEVICE static int Row(int row) { return static_cast<int>(threadIdx.x) % 128 / 32 * kRows + row; }

  // The lane's part of slice 0 of a line of the stage, or of a line of zeros.
  static constexpr int kNoLine = -1;
  KNNCONV_DEVICE uint32_t LineAt(int stage, int number) const {
    const char* const line = number < 0 ? pipe_.Zeros() : pipe_.Lines(stage) + number * 128;
    return SharedAddress(line) + ((lane_ / 16 ^ (number & 7)) << 4);
  }

  template <bool kTranspose>
  KNNCONV_DEVICE static void LoadMatrices(uint32_t (&pair)[kPairs], uint32_t at) {
    gpu::LoadMatrices<kTranspose>(pair, __cvta_shared_to_generic(at));
  }

  KNNCONV_DEVICE static void Split(const Lines& lines, Fragment& high, Fragment& low) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float first = lines[slice][p / 2][p % 2 * 2], second = lines[slice][p / 2][p % 2 * 2 + 1];
        const uint32_t pair = Round(first, second);
        high[slice][p] = pair;
        low[slice][p] = Round(first - __uint_as_float(pair << 16), second - __uint_as_float(pair & 0xffff0000u));
      }
    }
  }

  KNNCONV_DEVICE static bool IsFinite(const Fragment& fragment) {
    uint32_t sum = 0;  // of products with zero: NaN where one is not finite
#pragma unroll
    for (const auto& slice : fragment) {
#pragma unroll
      for (uint32_t pair : slice) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0u));
    }
    return (sum & 0x7fff7fffu) == 0;
  }

  // Zeros where a low part is not finite: infinities have none.
  KNNCONV_DEVICE static void KeepFinite(Fragment& fragment) {
    constexpr uint32_t kMost = 0x7f7f7f7f;
#pragma unroll
    for (auto& slice : fragment) {
#pragma unroll
      for (uint32_t& pair : slice) {
        uint32_t is_finite;  // ones
        asm("set.le.u32.bf16x2 %0, %1, %2;" : "=r"(is_finite) : "r"(pair & 0x7fff7fffu), "r"(kMost));
        pair &= is_finite;
      }
    }
  }

  // fragment = next, in a way that needs the old one: else the compiler uses its registers for other things, and
  // computes the next one there, while products still read them.
  KNNCONV_DEVICE void Replace(const Fragment& next, Fragment& fragment) const {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) fragment[slice][p] = next[slice][p] | (fragment[slice][p] & zero_);
    }
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
