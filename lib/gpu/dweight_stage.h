// How one step's operands reach shared memory: kDepthTile positions of x's rows, gathered, and of g's.
//
// A thread keeps its column of the tile, and so its slot and channel, for the whole of a slice, and walks down the
// positions. Tiles lie [position][column], as memory does; the products read x's tile transposed.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_plan.h"
#include "gpu/dweight_taps.h"
#include "gpu/elements.h"

namespace knnconv::gpu {

inline constexpr int kVector = 8;  // 16-bit elements of a 16-byte copy
inline constexpr int kTilePad = 8;  // elements between rows of a tile, so that eight rows of 16 bytes lie in different banks

// Which of a tile's elements a thread stages: kWidth columns at once, down the positions in steps of kRowStep.
template <int kThreads, int kColumns, int kWidth>
struct StagePart {
  static constexpr int kLanes = kColumns / kWidth;  // threads of one row
  static constexpr int kRowStep = kThreads / kLanes;
  static constexpr int kPasses = (kDepthTile + kRowStep - 1) / kRowStep;

  int row = threadIdx.x / kLanes;
  int column = threadIdx.x % kLanes * kWidth;
};

// Rows of x. `T` is the type of the products.
template <typename T, typename View, int kThreads, int kColumns, bool kVectors>
class SourceStage {
  using Part = StagePart<kThreads, kColumns, kVectors ? kVector : 1>;
  static constexpr int kPitch = kColumns + kTilePad;
  // Elements loaded before the first is stored.
  static constexpr int kBatch = kVectors ? Part::kPasses : (Part::kPasses < 8 ? Part::kPasses : 8);

 public:
  // `first_row` is the tile's first row of dw; `rows` of them exist.
  KNNCONV_DEVICE SourceStage(const Dweight& dweight, int32_t first_row, int rows)
      : channels_(dweight.channels), is_wide_(dweight.x_type != ElementOf<T>::value), exists_(part_.column < rows) {
    slot_ = exists_ ? (first_row + part_.column) / channels_ : 0;
    channel_ = exists_ ? (first_row + part_.column) % channels_ : 0;
  }

  // `count` positions of `view` from `begin` on are next; `x` is its group's matrix.
  KNNCONV_DEVICE void Start(const View& view, const char* x, int64_t begin, int count) {
    x_ = x;
    left_ = exists_ ? count - part_.row : 0;
    walk_ = ahead_ = typename View::Walk(view, slot_, begin + part_.row, Part::kRowStep);
    if constexpr (kVectors) Fetch(view);
  }

  // The next step's elements, into `tile` [kDepthTile][kPitch].
  KNNCONV_DEVICE void Stage(const View& view, T* tile) {
    if constexpr (Part::kRowStep > kDepthTile) {
      if (part_.row >= kDepthTile) return;
    }
    tile += part_.row * kPitch + part_.column;
    if constexpr (kVectors) {
#pragma unroll
      for (int pass = 0; pass < Part::kPasses; ++pass) {
        const int64_t source = Next(view, fetched_[pass]);
        const bool valid = source != kNoSource;
        const T* from = reinterpret_cast<const T*>(x_) + (valid ? source * channels_ + channel_ : 0);
        CopyAsync16(tile + pass * Part::kRowStep * kPitch, from, valid);
      }
      Fetch(view);
    } else {
      for (int first = 0; first < Part::kPasses; first += kBatch) {
        T values[kBatch];
#pragma unroll
        for (int pass = 0; pass < kBatch; ++pass) {
          const int32_t fetched = left_ > 0 ? walk_.Fetch(view) : 0;
          values[pass] = Read(Next(view, fetched));
        }
#pragma unroll
        for (int pass = 0; pass < kBatch; ++pass) tile[(first + pass) * Part::kRowStep * kPitch] = values[pass];
      }
    }
  }

 private:
  KNNCONV_DEVICE int64_t Next(const View& view, int32_t fetched) {
    const int64_t source = left_ > 0 ? walk_.Source(view, fetched) : kNoSource;
    walk_.Advance(view);
    left_ -= Part::kRowStep;
    return source;
  }

  KNNCONV_DEVICE void Fetch(const View& view) {
    if constexpr (View::kHasTable) {
#pragma unroll
      for (int pass = 0; pass < Part::kPasses; ++pass) {
        fetched_[pass] = exists_ ? ahead_.Fetch(view) : 0;
        ahead_.Advance(view);
      }
    }
  }

  KNNCONV_DEVICE T Read(int64_t source) const {
    if (source == kNoSource) return FromFloat<T>(0);
    const int64_t element = source * channels_ + channel_;
    if (is_wide_) return FromFloat<T>(__ldg(reinterpret_cast<const float*>(x_) + element));
    return __ldg(reinterpret_cast<const T*>(x_) + element);
  }

  const Part part_;
  const int32_t channels_;
  const bool is_wide_, exists_;
  int32_t slot_, channel_;

  const char* x_ = nullptr;
  int left_ = 0;  // positions from this thread's next one to the end
  typename View::Walk walk_, ahead_;
  int32_t fetched_[kVectors ? Part::kPasses : 1] = {};
};

// Rows of g: in order, or those of a slot's taps. Rows that do not count are zeros.
template <typename T, typename View, int kThreads, int kColumns, bool kVectors>
class CotangentStage {
  using Part = StagePart<kThreads, kColumns, kVectors ? kVector : 1>;
  static constexpr int kPitch = kColumns + kTilePad;
  static constexpr int kBatch = kVectors ? Part::kPasses : (Part::kPasses < 8 ? Part::kPasses : 8);

 public:
  KNNCONV_DEVICE CotangentStage(const Dweight& dweight, int32_t first_column)
      : columns_(dweight.columns), column_(first_column + part_.column), exists_(column_ < columns_) {}

  KNNCONV_DEVICE void Start(const View& view, const T* g, int64_t begin, int count) {
    g_ = g;
    left_ = exists_ ? count - part_.row : 0;
    position_ = begin + part_.row;
    if constexpr (View::kBySlot) {
      walk_ = ahead_ = typename View::Walk(view, 0, position_, Part::kRowStep);
      if constexpr (kVectors) Fetch(view);
    }
  }

  KNNCONV_DEVICE void Stage(const View& view, T* tile) {
    if constexpr (Part::kRowStep > kDepthTile) {
      if (part_.row >= kDepthTile) return;
    }
    tile += part_.row * kPitch + part_.column;
    for (int first = 0; first < Part::kPasses; first += kBatch) {
      T values[kBatch];
      uint32_t counted = ~0u;  // a bit for each pass
      if (view.has_uncounted_rows()) counted = Counted(view);
#pragma unroll
      for (int pass = 0; pass < kBatch; ++pass) {
        T* const to = tile + (first + pass) * Part::kRowStep * kPitch;
        const bool valid = left_ > 0 && (counted >> pass & 1) != 0;
        const int64_t row = Row(view, pass);
        const T* from = g_ + (valid ? row * columns_ + column_ : 0);
        if constexpr (kVectors) {
          CopyAsync16(to, from, valid);
        } else {
          values[pass] = valid ? __ldg(from) : FromFloat<T>(0);
        }
        position_ += Part::kRowStep;
        left_ -= Part::kRowStep;
      }
      if constexpr (!kVectors) {
#pragma unroll
        for (int pass = 0; pass < kBatch; ++pass) tile[(first + pass) * Part::kRowStep * kPitch] = values[pass];
      }
    }
    if constexpr (kVectors && View::kBySlot) Fetch(view);
  }

 private:
  KNNCONV_DEVICE uint32_t Counted(const View& view) const {
    uint32_t counted = 0;
#pragma unroll 1
    for (int pass = 0; pass < kBatch && left_ > pass * Part::kRowStep; ++pass) {
      if (view.IsCounted(position_ + pass * Part::kRowStep)) counted |= 1u << pass;
    }
    return counted;
  }

  KNNCONV_DEVICE int64_t Row(const View& view, int pass) {
    if constexpr (View::kBySlot) {
      const int32_t fetched = kVectors ? fetched_[pass] : left_ > 0 ? walk_.FetchRow(view) : 0;
      const int64_t row = walk_.Row(view, fetched);
      walk_.Advance(view);
      return row;
    } else {
      return position_;
    }
  }

  KNNCONV_DEVICE void Fetch(const View& view) {
#pragma unroll
    for (int pass = 0; pass < Part::kPasses; ++pass) {
      fetched_[pass] = ahead_.FetchRow(view);
      ahead_.Advance(view);
    }
  }

  const Part part_;
  const int32_t columns_, column_;
  const bool exists_;

  const T* g_ = nullptr;
  int left_ = 0;
  int64_t position_ = 0;
  typename View::Walk walk_, ahead_;
  int32_t fetched_[kVectors ? Part::kPasses : 1] = {};
};

}  // namespace knnconv::gpu
