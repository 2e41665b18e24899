// The end of a tile: its sums become rows of the result.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "gpu/lanes.h"
#include "hopper/tap_split.h"
#include "hopper/tap_tiles.h"

namespace knnconv::hopper {

// Of a thread of the consuming warpgroups. `results`: Shape::kResults times kStoredRows lines in shared memory for each
// of their warps, swizzled as the copy engine's boxes are.
template <typename Shape>
class TileWriter {
 public:
  using Sums = float[Shape::kBlocks][Shape::kColumns / 2];

  KNNCONV_DEVICE TileWriter(const TapPlan& plan, const TileWalk<Shape>& walk, char* results)
      : plan_(plan), walk_(walk), warp_(threadIdx.x % Shape::kConsumerThreads / 32), lane_(threadIdx.x % 32),
        first_row_(warp_ / 4 * Shape::kBlocks * 64),
        own_row_(first_row_ + lane_ / 16 % Shape::kBlocks * 64 + warp_ % 4 * 16 + lane_ % 16), lines_(results) {}

  // Other lines from here on.
  KNNCONV_DEVICE void UseLines(char* results) { lines_ = results; }

  KNNCONV_DEVICE void SyncWarpgroup() const { SyncThreads(1 + warp_ / 4, 128); }

  KNNCONV_DEVICE int first_row() const { return first_row_; }
  KNNCONV_DEVICE int own_row() const { return own_row_; }

  // The rows of A of a tile's last step, free for its results.
  KNNCONV_DEVICE void UseStage(char* a) { stage_lines_ = a + first_row_ * 128; }

  // Rows that are `dead` become zeros, without the bias; those `unwritten` are left alone where rows go one by one.
  // `shared`: of the columns, only those that belong to this block.
  KNNCONV_DEVICE void Write(const TapTile& tile, const Sums& sums, bool own_is_unwritten, bool own_is_dead,
                            bool shared = false) {
    const bool looks_up = plan_.stores == Stores::kRows && !own_is_unwritten;
    const int64_t out_row = looks_up ? walk_.OutRow(tile, own_row_) : kNoRow;
    if constexpr (kHasBias) {
      bias_ = plan_.gemm.bias;
      if (bias_ != nullptr) bias_ += int64_t{tile.group} * plan_.groups.bias;
    }
    if (plan_.gemm.out_type == gpu::Element::kF32) {
      WriteAs<float>(tile, sums, out_row, own_is_dead, shared);
    } else {
      WriteAs<typename Shape::T>(tile, sums, out_row, own_is_dead, shared);
    }
  }

  // Before the block ends, or somebody else uses the lines.
  KNNCONV_DEVICE void Finish() const {
    if (IsStorer()) WaitForStoresToRead<0>();
  }

 private:
  static constexpr bool kHasBias = !Shape::kTransposed;  // dinput has none

  // out = round(sums + bias). Each warp gathers 16 rows and 128 bytes of them at a time in shared memory, to store
  // lines.
  template <typename Out>
  KNNCONV_DEVICE void WriteAs(const TapTile& tile, const Sums& sums, int64_t own_out_row, bool own_is_dead,
                              bool shared) {
    constexpr int kLine = 128 / sizeof(Out);  // columns
    const uint32_t dead = __ballot_sync(kAllLanes, own_is_dead);
    int count = 0;  // of stores
#pragma unroll
    for (int first = 0; first < Shape::kColumns; first += kLine) {
      const int first_column = tile.first_column + first;
      if (first_column >= plan_.gemm.columns) break;
      if constexpr (Shape::kSplit > 1) {
        using Columns = SplitColumns<Shape>;
        if (shared && Columns::OwnerOf(first / Columns::kWidth) != walk_.rank()) continue;
      }
      char* together = nullptr;
      if constexpr (Shape::kStoresTogether) together = NextPlace(count++);
#pragma unroll
      for (int block = 0; block < Shape::kBlocks; ++block) {
        char* results;
        if constexpr (Shape::kStoresTogether) {
          results = together + (block * 64 + warp_ % 4 * kStoredRows) * 128;
        } else {
          results = NextResults();
        }
        if constexpr (sizeof(Out) == 2) {
          GatherPacked<Out>(results, tile, sums[block], first);
        } else {
          GatherFloats(results, tile, sums[block], first);
        }
        if (const uint32_t rows = dead >> block * 16 & 0xffff; rows != 0) ClearRows(results, rows);
        if (plan_.stores == Stores::kRows) {
          StoreRows<Out>(results, first_column, own_out_row, block);
        } else if constexpr (!Shape::kStoresTogether) {
          StoreBoxes(results, tile, first_column, block);
        }
      }
      if constexpr (Shape::kStoresTogether) {
        if (plan_.stores != Stores::kRows) {
          FenceAsyncProxy();
          SyncWarpgroup();
          if (IsStorer()) StoreBox(together, tile, first_column, first_row_);
        }
      }
    }
  }

  // round(sums + bias) of 16 rows and a line's columns from `first` on, four matrices of 8 x 8 at a time.
  template <typename Out>
  KNNCONV_DEVICE void GatherPacked(char* results, const TapTile& tile, const float (&sums)[Shape::kColumns / 2],
                                   int first) const {
#pragma unroll
    for (int j = 0; j < 8 && first + 8 * j < Shape::kColumns; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int eight = j + i / 2;  // columns
        const float2 bias = BiasAt(tile.first_column + first + 8 * eight + lane_ % 4 * 2);
        const float* sum = sums + (first / 8 + eight) * 4 + i % 2 * 2;
        pairs[i] = Pack<Out>(sum[0] + bias.x, sum[1] + bias.y);
      }
      StoreMatrices(Chunk(results, lane_ % 16, j + lane_ / 16), pairs);
    }
  }

  KNNCONV_DEVICE void GatherFloats(char* results, const TapTile& tile, const float (&sums)[Shape::kColumns / 2],
                                   int first) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 bias = BiasAt(tile.first_column + first + 8 * j + lane_ % 4 * 2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* sum = sums + (first / 8 + j) * 4 + h * 2;
        const int row = 8 * h + lane_ / 4, at = (8 * j + lane_ % 4 * 2) * static_cast<int>(sizeof(float));
        float2& pair = *reinterpret_cast<float2*>(Chunk(results, row, at / 16) + at % 16);
        pair = make_float2(sum[0] + bias.x, sum[1] + bias.y);
      }
    }
  }

  // Zeros in the lines that have a bit in `rows`.
  KNNCONV_DEVICE void ClearRows(char* results, uint32_t rows) const {
    __syncwarp();
    if ((rows >> lane_ & 1) == 0) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) *reinterpret_cast<uint4*>(Chunk(results, lane_, i)) = make_uint4(0, 0, 0, 0);
  }

  // Lines that no store reads any more.
  KNNCONV_DEVICE char* NextResults() {
    results_ = (results_ + 1) % Shape::kResults;
    if (lane_ == 0) WaitForStoresToRead<Shape::kResults - 1>();
    __syncwarp();
    return lines_ + (warp_ * Shape::kResults + results_) * (kStoredRows * 128);
  }

  // The same for a warpgroup's store number `count` of a tile. At the first ones, the last tile's have read theirs.
  KNNCONV_DEVICE char* NextPlace(int count) {
    if (count >= Shape::kPlaces) {
      if (IsStorer()) WaitForStoresToRead<Shape::kPlaces - 1>();
      SyncWarpgroup();
    }
    constexpr int kOwn = Shape::kPlaces - 1;  // beside the stage's
    const int place = count % Shape::kPlaces;
    return place == kOwn ? stage_lines_ : lines_ + (warp_ / 4 * kOwn + place) * Shape::kPlaceBytes;
  }

  // The thread that stores: one of each warp, or of the warpgroup.
  KNNCONV_DEVICE bool IsStorer() const { return lane_ == 0 && (!Shape::kStoresTogether || warp_ % 4 == 0); }

  // 16 bytes of a swizzled line.
  KNNCONV_DEVICE static char* Chunk(char* lines, int row, int chunk) {
    return lines + row * 128 + ((chunk ^ row % 8) << 4);
  }

  KNNCONV_DEVICE void StoreBoxes(const char* results, const TapTile& tile, int first_column, int block) const {
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) StoreBox(results, tile, first_column, first_row_ + block * 64 + warp_ % 4 * kStoredRows);
  }

  // By one thread.
  KNNCONV_DEVICE void StoreBox(const char* results, const TapTile& tile, int first_column, int row) const {
    if (plan_.stores == Stores::kFlat) {
      hopper::StoreBox(&plan_.out, results, first_column, walk_.FlatRow(tile, row));
    } else {
      const TableBox box = walk_.TableRows(tile, row);
      hopper::StoreBox(&plan_.out, results, first_column, static_cast<int>(box.node), box.first);
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
    if (!kHasBias || bias_ == nullptr || column >= plan_.gemm.columns) return make_float2(0.0f, 0.0f);
    return *reinterpret_cast<const float2*>(bias_ + column);
  }

  template <typename Out>
  KNNCONV_DEVICE static uint32_t Pack(float low, float high) {
    union {
      Out pair[2];
      uint32_t bits;
    };
    pair[0] = gpu::FromFloat<Out>(low);
    pair[1] = gpu::FromFloat<Out>(high);
    return bits;
  }

  const TapPlan& plan_;
  const TileWalk<Shape>& walk_;
  const int warp_, lane_;
  const int first_row_;  // of the warpgroup
  const int own_row_;    // the row of the tile whose place in the result this lane looks up
  char* lines_;
  char* stage_lines_ = nullptr;  // the warpgroup's, of the last step
  int results_ = 0;
  const float* bias_ = nullptr;  // of the tile's group
};

}  // namespace knnconv::hopper
