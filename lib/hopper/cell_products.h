// The consumers of cells: warpgroups that add the lines of each node's taps and multiply the sums.
//
//     A_high [64, 64] = round(sum),  A_low = round(sum - A_high):  (A_high + A_low) @ B is exact to 2^-17
//
// Lines are read as the tensor core wants A in registers (ldmatrix), so that sums need not pass through memory again.
// The next step's lines are added while this one's products are under way.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/fragment.h"
#include "hopper/cell_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/tap_write.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class CellConsumer {
 public:
  KNNCONV_DEVICE CellConsumer(const TapPlan& plan, const CellPipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : pipe_(pipe), walk_(walk), lane_(threadIdx.x % 32), writer_(plan, walk, pipe.Results()) {}

  KNNCONV_DEVICE void Run() {
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const bool unwritten = Multiply();
      writer_.Write(walk_.Tile(turn), sums_, unwritten, false);
    }
    writer_.Finish();
  }

 private:
  static constexpr int kSlices = kStepDepth / kSliceDepth, kPairs = 4;  // of a step; registers of a slice
  using Fragment = uint32_t[kSlices][kPairs];
  using Lines = float[kSlices][2 * kPairs];

  // Adds up a tile's steps; returns whether somebody else writes the lane's own row.
  KNNCONV_DEVICE bool Multiply() {
#pragma unroll
    for (float& sum : sums_[0]) sum = 0.0f;
    const int row = writer_.own_row() % Shape::kHalfRows;
    int previous = -1;
    bool last, unwritten = false;
    do {
      const int stage = place_.stage;
      pipe_.Full(stage).Wait(place_.parity);
      last = StepNote::Unpack(pipe_.Note(stage)).last;
      if (last) unwritten = (pipe_.Unwritten(stage, row / 32) >> row % 32 & 1) != 0;
      Lines lines;
      AddLines(stage, pipe_.Span(stage, row), lines);
      __syncwarp();
      if (lane_ == 0) pipe_.Empty(stage).Arrive();
      place_.Advance();

      WaitForProducts<0>();
      if (previous >= 0) Release(previous);
      Fragment high, low;
      Split(lines, high, low);
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

  // lines = the sum of the row's lines, for each of the warp's rows. A bfloat16 is the upper half of a float.
  KNNCONV_DEVICE void AddLines(int stage, LineSpan span, Lines& lines) const {
#pragma unroll
    for (auto& slice : lines) {
#pragma unroll
      for (float& value : slice) value = 0.0f;
    }
    const char* const stage_lines = pipe_.Lines(stage);
    const char* const zeros = pipe_.Zeros();
    const int most = static_cast<int>(__reduce_max_sync(kAllLanes, uint32_t{span.count}));
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      const int number = span.first + i;
      const char* const line = i < span.count ? stage_lines + number * 128 : zeros;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        uint32_t pair[kPairs];
        gpu::internal::LoadMatrices<false>(pair, line + (((2 * slice + lane_ / 16) ^ number % 8) << 4));
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          lines[slice][2 * p] += __uint_as_float(pair[p] << 16);
          lines[slice][2 * p + 1] += __uint_as_float(pair[p] & 0xffff0000u);
        }
      }
    }
  }

  KNNCONV_DEVICE static void Split(const Lines& lines, Fragment& high, Fragment& low) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const float first = lines[slice][2 * p], second = lines[slice][2 * p + 1];
        const uint32_t pair = Round(first, second);
        high[slice][p] = pair;
        low[slice][p] = Round(Rest(first, pair << 16), Rest(second, pair & 0xffff0000u));
      }
    }
  }

  // Infinities have no low part.
  KNNCONV_DEVICE static float Rest(float sum, uint32_t high) {
    const float rest = sum - __uint_as_float(high);
    return fabsf(rest) < INFINITY ? rest : 0.0f;
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
  TileWriter<Shape> writer_;
  typename CellPipe<Shape>::Place place_;
  typename CellPipe<Shape>::WeightPlace weights_;
  typename TileWriter<Shape>::Sums sums_;
};

}  // namespace knnconv::hopper
