// The consumers: warpgroups that multiply the steps of a tile as they arrive and write the sums out.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/lanes.h"
#include "hopper/tap_pipe.h"
#include "hopper/tap_tiles.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

template <typename Shape>
class Consumer {
 public:
  KNNCONV_DEVICE Consumer(const TapPlan& plan, const Pipe<Shape>& pipe, const TileWalk<Shape>& walk)
      : plan_(plan), pipe_(pipe), walk_(walk), warp_(threadIdx.x % Shape::kConsumerThreads / 32), lane_(threadIdx.x % 32),
        first_row_(warp_ / 4 * Shape::kBlocks * 64),
        own_row_(first_row_ + lane_ / 16 % Shape::kBlocks * 64 + warp_ % 4 * 16 + lane_ % 16) {}

  KNNCONV_DEVICE void Run() {
    if constexpr (Shape::kResident) pipe_.Resident().Wait(0);
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      if (walk_.IsEmpty(tile)) continue;
      const RowEnd end = Multiply();
      const int64_t out_row = end.unwritten ? kNoRow : walk_.OutRow(tile, own_row_);
      if (plan_.gemm.out_type == gpu::Element::kF32) {
        Write<float>(tile, out_row, end.dead);
      } else {
        Write<typename Shape::T>(tile, out_row, end.dead);
      }
    }
  }

 private:
  static constexpr Major kMajorB = Shape::kTransposed ? Major::kK : Major::kMN;

  // What becomes of the lane's own row.
  struct RowEnd {
    bool unwritten, dead;
  };

  // Adds up a tile's steps and returns what the last one says. A stage is given back once the next one's products are under
  // way. (Steps have one length: with branches around some of the products, the compiler makes each wait for the last.)
  KNNCONV_DEVICE RowEnd Multiply() {
    ClearSums();
    int previous = -1;
    StepNote note;
    do {
      const int stage = place_.stage;
      pipe_.Full(stage).Wait(place_.parity);
      note = StepNote::Unpack(pipe_.Note(stage));
      const uint64_t a = Describe<Major::kK>(pipe_.A(stage) + first_row_ * kStepDepth * 2);
      const uint64_t b = Describe<kMajorB>(Shape::kResident ? pipe_.Weights(HasSlot(note) ? note.slot : 0)
                                                            : pipe_.B(stage));
      FenceProducts();
#pragma unroll
      for (int slice = 0; slice < kStepDepth / kSliceDepth; ++slice) MultiplySlice(a, b, slice);
      CommitProducts();
      WaitForProducts<1>();
      if (previous >= 0) Release(previous);
      previous = stage;
      place_.Advance();
    } while (!note.last);
    RowEnd end{note.unwritten, (note.dead >> own_row_ / kBoxRows & 1) != 0};
    if constexpr (Shape::kSource == Source::kRows) {
      const RowMarks marks = pipe_.Marks(previous, own_row_ / 32);
      end = {(marks.unwritten >> own_row_ % 32 & 1) != 0, (marks.dead >> own_row_ % 32 & 1) != 0};
    }
    WaitForProducts<0>();
    __syncwarp();  // all lanes have read the marks
    Release(previous);
#pragma unroll
    for (auto& block : sums_) PinSums(block);
    if (Shape::kResident && !HasSlot(note)) ClearSums();  // zeros times a slot's weights, which need not be finite
    return end;
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
      MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, kMajorB>(
          sums_[block], a + block * kBlockAdvance + slice * kDepthAdvance<Major::kK>, b + slice * kDepthAdvance<kMajorB>);
    }
  }

  KNNCONV_DEVICE void Release(int stage) const {
    if (lane_ == 0) pipe_.Empty(stage).Arrive();
  }

  // out = round(sums + bias). Each warp turns 16 rows at a time in shared memory, so that it stores lines of 128 bytes.
  template <typename Out>
  KNNCONV_DEVICE void Write(const TapTile& tile, int64_t own_out_row, bool own_is_dead) const {
    constexpr int kLine = 128 / sizeof(Out);  // columns
    char* results = pipe_.Results(warp_);
    const uint32_t dead = __ballot_sync(gpu::kAllLanes, own_is_dead);
    char* out = static_cast<char*>(plan_.gemm.out);
    const int64_t pitch = int64_t{plan_.gemm.columns} * sizeof(Out);
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
#pragma unroll
      for (int first = 0; first < Shape::kColumns; first += kLine) {
        if (tile.first_column + first >= plan_.gemm.columns) break;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kLine / 8; ++j) {
          const int column = 8 * j + lane_ % 4 * 2;
          const float2 bias = BiasAt(tile.first_column + first + column);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = 8 * h + lane_ / 4;
            const bool is_dead = (dead >> (block * 16 + row) & 1) != 0;
            const float* sum = sums_[block] + (first / 8 + j) * 4 + h * 2;
            const float low = is_dead ? 0.0f : sum[0] + bias.x, high = is_dead ? 0.0f : sum[1] + bias.y;
            StorePair<Out>(results + row * Shape::kResultPitch + column * sizeof(Out), low, high);
          }
        }
        __syncwarp();
        const int chunk = lane_ % 8, column = tile.first_column + first + chunk * (16 / static_cast<int>(sizeof(Out)));
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
          const int row = i + lane_ / 8;
          const int64_t to = __shfl_sync(gpu::kAllLanes, own_out_row, block * 16 + row);
          const uint4 value = *reinterpret_cast<const uint4*>(results + row * Shape::kResultPitch + chunk * 16);
          if (to != kNoRow && column < plan_.gemm.columns) {
            *reinterpret_cast<uint4*>(out + to * pitch + column * static_cast<int64_t>(sizeof(Out))) = value;
          }
        }
      }
    }
  }

  KNNCONV_DEVICE float2 BiasAt(int column) const {
    if (plan_.gemm.bias == nullptr || column >= plan_.gemm.columns) return make_float2(0.0f, 0.0f);
    return *reinterpret_cast<const float2*>(plan_.gemm.bias + column);
  }

  template <typename Out>
  KNNCONV_DEVICE static void StorePair(char* to, float low, float high) {
    struct alignas(2 * sizeof(Out)) Pair {
      Out low, high;
    };
    *reinterpret_cast<Pair*>(to) = {gpu::FromFloat<Out>(low), gpu::FromFloat<Out>(high)};
  }

  const TapPlan& plan_;
  const Pipe<Shape>& pipe_;
  const TileWalk<Shape>& walk_;
  const int warp_, lane_;
  const int first_row_;  // of the warpgroup
  const int own_row_;    // the row of the tile whose place in the result this lane looks up
  typename Pipe<Shape>::Place place_;
  float sums_[Shape::kBlocks][Shape::kColumns / 2];
};

}  // namespace knnconv::hopper
