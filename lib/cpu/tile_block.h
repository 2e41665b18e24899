// A block of output rows in the making: the engine that all four passes share.
//
//     sums[row, :] += sum over taps:  source_row(tap) @ weight[slot(tap)]
//
// Tap by tap, source rows are gathered and converted into an A tile [rows, kTileDepth] of floats that stays in the
// cache; when the tile is full it is multiplied with the weight panels. What differs between the passes is only where
// the taps come from. Each element is one chain of multiply-adds, slots and channels ascending, whatever the tiling.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

// Rows of an A tile: enough to reuse a panel's stretch many times, and 122 KB at most.
inline constexpr int kBlockRows = 8 * kMaxTileRows;

class TileBlock {
 public:
  // Sums of columns of panels [panel_begin, panel_end) in this thread's workspace: one TileBlock a thread at a time.
  TileBlock(const Isa& isa, Source source, const Panels& panels, const float* packed, int64_t panel_begin,
            int64_t panel_end, int64_t max_rows);

  // Starts a block of rows whose sums are zero.
  void Begin(int64_t rows);

  // The taps that follow add to rows [0, count), or to rows[0], rows[1], ... (all different; kept by
  // reference); kBlockRows of them at most.
  void Select(int64_t count);
  void Select(const int32_t* rows, int64_t count);

  // `taps` taps (one, where pairs are padded), of consecutive slots and consecutive source rows, of every selected row:
  // the first source row, or null for holes. patch(begin, n, tile) may overwrite elements [begin, begin + n) of the
  // taps in the tile, whose row stride is kTileDepthStride.
  template <typename Patch>
  void Add(int64_t slot, int64_t taps, const void* const* source_rows, const Patch& patch) {
    const int64_t length = panels_.depth() * taps;
    for (int64_t d = 0; d < length;) {
      if (used_ == kTileDepth) Multiply();
      const int64_t n = std::min<int64_t>(length - d, kTileDepth - used_);
      if (panels_.padded()) {
        isa_.gather_padded_pairs(source_rows, selected_, 2 * d, std::min(2 * n, panels_.row_elements() - 2 * d),
                                 tile_ + used_);
      } else {
        isa_.gather[static_cast<int>(source_)](source_rows, selected_, d, n, tile_ + used_);
      }
      patch(d, n, tile_ + used_);
      Append(panels_.Position(slot, d), n);
      d += n;
    }
  }
  void Add(int64_t slot, const void* const* source_rows) {
    Add(slot, 1, source_rows, [](int64_t, int64_t, float*) {});
  }

  // Multiplies what has been gathered.
  void Multiply();

  // dst[i][:] = round(sums[row + i, :] + bias[:]) for this block's columns; all point at column 0 of the whole row.
  void Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst);

 private:
  struct Step { int64_t position; int32_t a, length; };

  void Append(int64_t position, int64_t length);
  float* Sums(int64_t row) { return sums_ + row * stride_; }

  const Isa& isa_;
  const Source source_;
  const Panels& panels_;
  const float* packed_;
  const int64_t panel_begin_, panel_end_, first_column_, columns_, stride_;
  float* tile_;
  float* sums_;
  const int32_t* selection_ = nullptr;
  int64_t rows_ = 0, selected_ = 0;
  int32_t used_ = 0;
  int step_count_ = 0;
  bool fresh_ = false;  // the sums are zero but not yet written
  Step steps_[kTileDepth];
};

}  // namespace knnconv::cpu
