// How one step's operands reach shared memory: some positions of x's rows, gathered, and of g's.
//
// A thread keeps its column of the tile, and so its slot and channel, for the whole of a slice, and walks down the
// positions. Tiles lie [position][column], as memory does; the products read x's tile transposed. Past the last
// position zeros are staged: no step is a special case, so that copies and products can share one run of
// instructions.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_plan.h"
#include "gpu/dweight_taps.h"
#include "gpu/elements.h"
#include "gpu/knockout.h"

namespace knnconv::gpu {

// How an operand reaches shared memory.
enum class StageBy { kElement, kAsyncCopy, kRegisters };

// Which of a tile's elements a thread stages: kWidth columns at once, down the positions in steps of kRowStep.
template <int kThreads, int kPositions, int kColumns, int kWidth>
struct StagePart {
  static constexpr int kLanes = kColumns / kWidth;  // threads of one row
  static constexpr int kRowStep = kThreads / kLanes;
  static constexpr int kPasses = (kPositions + kRowStep - 1) / kRowStep;
  static constexpr int kBatch = kPasses < 8 ? kPasses : 8;  // elements loaded before the first is stored

  int row = threadIdx.x / kLanes;
  int column = threadIdx.x % kLanes * kWidth;

  // Where a step has fewer rows than one pass covers, some threads have nothing to stage.
  KNNCONV_DEVICE bool Idles() const { return kRowStep > kPositions && row >= kPositions; }
};

template <StageBy kBy>
KNNCONV_DEVICE void StageVector(void* shared, const void* global, bool valid) {
  if constexpr (kBy == StageBy::kAsyncCopy) {
    CopyAsync16(shared, global, valid);
  } else {
    Copy16(shared, global, valid);
  }
}

// Rows of x. `T` is the type of the products.
template <typename T, typename View, int kThreads, int kPositions, int kColumns, StageBy kBy>
class SourceStage {
  static constexpr bool kVectors = kBy != StageBy::kElement;
  using Part = StagePart<kThreads, kPositions, kColumns, kVectors ? kVector : 1>;
  using Walk = typename View::Walk;
  static constexpr int kPitch = kColumns + kTilePad;

 public:
  static constexpr int kPasses = kVectors ? Part::kPasses : 1;  // calls of Stage a step

  // `first_row` is the tile's first row of dw; `rows` of them exist.
  KNNCONV_DEVICE SourceStage(const Dweight& dweight, int32_t first_row, int rows)
      : is_wide_(dweight.x_type != ElementOf<T>::value), exists_(part_.column < rows && !part_.Idles()) {
    const int bytes = is_wide_ ? 4 : static_cast<int>(sizeof(T));
    row_bytes_ = static_cast<uint32_t>(dweight.channels) * bytes;
    slot_ = exists_ ? (first_row + part_.column) / dweight.channels : 0;
    channel_bytes_ = exists_ ? (first_row + part_.column) % dweight.channels * bytes : 0;
  }

  // `count` positions of `view` from `begin` on are next; `x` is its group's matrix.
  KNNCONV_DEVICE void Start(const View& view, const char* x, int64_t begin, int count) {
    x_ = x + channel_bytes_;
    left_ = exists_ ? count - part_.row : 0;
    walk_ = Walk(view, slot_, begin + part_.row, Part::kRowStep);
    Fetch(view);
  }

  // Starts the next step's copies of one pass into `tile` [kPositions][kPitch].
  KNNCONV_DEVICE void Stage(const View& view, T* tile, int pass) {
    tile += part_.row * kPitch + part_.column;
    if constexpr (kVectors) {
      const Tap tap = walk_.Source(view, fetched_[pass]);
      const bool valid = tap.exists && left_ > pass * Part::kRowStep;
      if constexpr (!View::kHasTable) walk_.Advance(view);
      const char* from = x_ + uint64_t{tap.row} * row_bytes_;
      if (kHasGathers && !part_.Idles()) StageVector<kBy>(tile + pass * Part::kRowStep * kPitch, from, valid);
    } else {
#pragma unroll 1
      for (int first = 0; first < Part::kPasses; first += Part::kBatch) {
        T values[Part::kBatch];
#pragma unroll
        for (int i = 0; i < Part::kBatch; ++i) {
          const bool inside = left_ > (first + i) * Part::kRowStep;
          const Tap tap = walk_.Source(view, inside ? walk_.Fetch(view) : typename Walk::Fetched{});
          walk_.Advance(view);
          values[i] = Read(tap.row, tap.exists && inside);
        }
#pragma unroll
        for (int i = 0; i < Part::kBatch; ++i) tile[(first + i) * Part::kRowStep * kPitch] = values[i];
      }
    }
  }

  // After all passes of a step.
  KNNCONV_DEVICE void EndStep(const View& view) {
    left_ -= kPositions;
    Fetch(view);
  }

 private:
  KNNCONV_DEVICE void Fetch(const View& view) {
    if constexpr (kVectors && View::kHasTable) {
#pragma unroll
      for (int pass = 0; pass < Part::kPasses; ++pass) {
        if (exists_) fetched_[pass] = walk_.Fetch(view);
        walk_.Advance(view);
      }
    }
  }

  KNNCONV_DEVICE T Read(uint32_t row, bool exists) const {
    if (!exists) return FromFloat<T>(0);
    const char* from = x_ + uint64_t{row} * row_bytes_;
    if (is_wide_) return FromFloat<T>(ReadOnly(reinterpret_cast<const float*>(from)));
    return ReadOnly(reinterpret_cast<const T*>(from));
  }

  const Part part_;
  const bool is_wide_, exists_;
  int32_t slot_, channel_bytes_;
  uint32_t row_bytes_;

  const char* x_ = nullptr;  // the thread's first column of row 0
  int left_ = 0;             // positions from this thread's next one to the end
  Walk walk_;
  typename Walk::Fetched fetched_[kPasses] = {};
};

// Rows of g: in order, or those of a slot's taps.
template <typename T, typename View, int kThreads, int kPositions, int kColumns, StageBy kBy>
class CotangentStage {
  static constexpr bool kVectors = kBy != StageBy::kElement;
  using Part = StagePart<kThreads, kPositions, kColumns, kVectors ? kVector : 1>;
  using Walk = typename View::Walk;
  static constexpr int kPitch = kColumns + kTilePad;

 public:
  static constexpr int kPasses = kVectors ? Part::kPasses : 1;

  KNNCONV_DEVICE CotangentStage(const Dweight& dweight, int32_t first_column)
      : columns_(static_cast<uint32_t>(dweight.columns)),
        column_(first_column + part_.column),
        exists_(column_ < dweight.columns && !part_.Idles()) {}

  KNNCONV_DEVICE void Start(const View& view, const T* g, int64_t begin, int count) {
    g_ = g + column_;
    left_ = exists_ ? count - part_.row : 0;
    if constexpr (View::kBySlot) {
      walk_ = Walk(view, 0, begin + part_.row, Part::kRowStep);
      Fetch(view);
    } else {
      g_ += (begin + part_.row) * columns_;
    }
  }

  KNNCONV_DEVICE void Stage(const View& view, T* tile, int pass) {
    tile += part_.row * kPitch + part_.column;
    if constexpr (kVectors) {
      const T* from = g_;
      if constexpr (View::kBySlot) {
        from += uint64_t{walk_.Row(view, fetched_[pass])} * columns_;
      } else {
        g_ += uint64_t{Part::kRowStep} * columns_;
      }
      if (!part_.Idles()) {
        StageVector<kBy>(tile + pass * Part::kRowStep * kPitch, from, left_ > pass * Part::kRowStep);
      }
    } else {
#pragma unroll 1
      for (int first = 0; first < Part::kPasses; first += Part::kBatch) {
        T values[Part::kBatch];
#pragma unroll
        for (int i = 0; i < Part::kBatch; ++i) {
          const bool valid = left_ > (first + i) * Part::kRowStep;
          const T* from = g_;
          if constexpr (View::kBySlot) {
            from += uint64_t{walk_.Row(view, valid ? walk_.FetchRow(view) : typename Walk::Fetched{})} * columns_;
            walk_.Advance(view);
          } else {
            g_ += uint64_t{Part::kRowStep} * columns_;
          }
          values[i] = valid ? ReadOnly(from) : FromFloat<T>(0);
        }
#pragma unroll
        for (int i = 0; i < Part::kBatch; ++i) tile[(first + i) * Part::kRowStep * kPitch] = values[i];
      }
    }
  }

  KNNCONV_DEVICE void EndStep(const View& view) {
    left_ -= kPositions;
    if constexpr (View::kBySlot) Fetch(view);
  }

 private:
  KNNCONV_DEVICE void Fetch(const View& view) {
    if constexpr (kVectors) {
#pragma unroll
      for (int pass = 0; pass < Part::kPasses; ++pass) {
        if (exists_) fetched_[pass] = walk_.FetchRow(view);
        walk_.Advance(view);
      }
    }
  }

  const Part part_;
  const uint32_t columns_;
  const int32_t column_;
  const bool exists_;

  const T* g_ = nullptr;  // the thread's column of its next row; of row 0 where rows are those of taps
  int left_ = 0;
  Walk walk_;
  typename Walk::Fetched fetched_[kPasses] = {};
};

}  // namespace knnconv::gpu
