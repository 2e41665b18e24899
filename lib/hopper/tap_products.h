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
      : plan_(plan), pipe_(pipe), walk_(walk),
        warp_(threadIdx.x % Shape::kConsumerThreads / 32), lane_(threadIdx.x % 32),
        first_row_(warp_ / 4 * Shape::kBlocks * 64),
        own_row_(first_row_ + lane_ / 16 % Shape::kBlocks * 64 + warp_ % 4 * 16 + lane_ % 16) {}

  KNNCONV_DEVICE void Run() {
    if constexpr (Shape::kResident) pipe_.Resident().Wait(0);
    for (int64_t turn = 0; walk_.Has(turn); ++turn) {
      const TapTile tile = walk_.Tile(turn);
      if (walk_.IsEmpty(tile)) continue;
      const RowEnd end = Multiply();
      if (Shape::kSource == Source::kBoxes && end.unwritten) continue;
      const bool looks_up = plan_.stores == Stores::kRows && !end.unwritten;
      const int64_t out_row = looks_up ? walk_.OutRow(tile, own_row_) : kNoRow;
      if (plan_.gemm.out_type == gpu::Element::kF32) {
        Write<float>(tile, out_row, end.dead);
      } else {
        Write<typename Shape::T>(tile, out_row, end.dead);
      }
    }
    if (lane_ == 0) WaitForStoresToRead<0>();
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
          sums_[block], a + block * kBlockAdvance + slice * kDepthAdvance<Major::kK>,
          b + slice * kDepthAdvance<kMajorB>);
    }
  }

  KNNCONV_DEVICE void Release(int stage) const {
    if (lane_ == 0) pipe_.Empty(stage).Arrive();
  }

  // out = round(sums + bias). Each warp gathers 16 rows and 128 bytes of them at a time in shared memory, to store
  // lines.
  template <typename Out>
  KNNCONV_DEVICE void Write(const TapTile& tile, int64_t own_out_row, bool own_is_dead) {
    constexpr int kLine = 128 / sizeof(Out);  // columns
    const uint32_t dead = __ballot_sync(kAllLanes, own_is_dead);
#pragma unroll
    for (int first = 0; first < Shape::kColumns; first += kLine) {
      const int first_column = tile.first_column + first;
      if (first_column >= plan_.gemm.columns) break;
#pragma unroll
      for (int block = 0; block < Shape::kBlocks; ++block) {
        char* results = NextResults();
#pragma unroll
        for (int j = 0; j < kLine / 8; ++j) {
          const float2 bias = BiasAt(first_column + 8 * j + lane_ % 4 * 2);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = 8 * h + lane_ / 4;
            const bool is_dead = (dead >> (block * 16 + row) & 1) != 0;
            const float* sum = sums_[block] + (first / 8 + j) * 4 + h * 2;
            const float low = is_dead ? 0.0f : sum[0] + bias.x, high = is_dead ? 0.0f : sum[1] + bias.y;
            const int at = (8 * j + lane_ % 4 * 2) * static_cast<int>(sizeof(Out));
            StorePair<Out>(Chunk(results, row, at / 16) + at % 16, low, high);
          }
        }
        if (plan_.stores == Stores::kRows) {
          StoreRows<Out>(results, first_column, own_out_row, block);
        } else {
          StoreBoxes(results, tile, first_column, block);
        }
      }
    }
  }

  // Lines that no store reads any more.
  KNNCONV_DEVICE char* NextResults() {
    results_ = (results_ + 1) % Shape::kResults;
    if (lane_ == 0) WaitForStoresToRead<Shape::kResults - 1>();
    __syncwarp();
    return pipe_.Results(warp_, results_);
  }

  // 16 bytes of a swizzled line.
  KNNCONV_DEVICE static char* Chunk(char* lines, int row, int chunk) {
    return lines + row * 128 + ((chunk ^ row % 8) << 4);
  }

  KNNCONV_DEVICE void StoreBoxes(const char* results, const TapTile& tile, int first_column, int block) const {
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ != 0) return;
    const int row = first_row_ + block * 64 + warp_ % 4 * kStoredRows;
    if (plan_.stores == Stores::kFlat) {
      StoreBox(&plan_.out, results, first_column, walk_.FlatRow(tile, row));
    } else {
      const TableBox box = walk_.TableRows(tile, row);
      StoreBox(&plan_.out, results, first_column, static_cast<int>(box.node), box.first);
    }
    CommitStores();
  }

  template <typename Out>
  KNNCONV_DEVICE void StoreRows(char* results, int first_column, int64_t own_out_row, int block) const {
    constexpr int kChunk = 16 / sizeof(Out);
    __syncwarp();
    const int chunk = lane_ % 8, column = first_column + chunk * kChunk;
#pragma unroll
    for (int i = 0; i < kStoredRows; i += 4) {
      const int row = i + lane_ / 8;
      const int64_t to = __shfl_sync(kAllLanes, own_out_row, block * 16 + row);
      const uint4 value = *reinterpret_cast<const uint4*>(Chunk(results, row, chunk));
      if (to != kNoRow && column < plan_.gemm.columns) {
        *reinterpret_cast<uint4*>(static_cast<Out*>(plan_.gemm.out) + to * plan_.gemm.columns + column) = value;
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
  int results_ = 0;
  float sums_[Shape::kBlocks][Shape::kColumns / 2];
};

}  // namespace knnconv::hopper
