// A block of output rows whose source rows are read where they lie: fp32 (or bfloat16 pairs) need no conversion.
//
//     sums[row, :] += sum over taps:  source_row(tap) @ weight[slot(tap)]
//
// The same sums as TileBlock's, bit for bit, without the copies into its A tile.
#pragma once

#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

class InPlaceBlock {
 public:
  static constexpr int64_t kRows = 8 * kMaxTileRows;  // of a block, at most

  // Where it pays: a run of taps side by side must be long enough to hide the change of row pointers.
  static bool Suits(Source source, const Panels& panels, int64_t run) {
    return source == Source::kF32 && !panels.dot() && panels.depth() * run >= kMinSteps;
  }

  // Sums of columns of panels [panel_begin, panel_end) in this thread's workspace: one InPlaceBlock a thread at a time.
  // Each tap below stands for a run of `run` taps, of consecutive slots and consecutive source rows.
  InPlaceBlock(const Isa& isa, const Panels& panels, const float* packed, int64_t panel_begin, int64_t panel_end,
               int64_t run);

  // Starts a block of rows whose sums are zero.
  void Begin(int64_t rows);
  // Where the row pointers of the next tap are to be written; zeros() stands for a hole.
  const void** NextTap(int64_t slot);
  const void* zeros() const;
  // Room for the row of the tap begun last, where it must be composed.
  float* Room(int64_t row);
  // The same with null for a hole.
  void Add(int64_t slot, const void* const* source_rows);
  // Multiplies the taps added so far.
  void Multiply();
  // dst[i][:] = round(sums[row + i, :] + bias[:]) for this block's columns; all point at column 0 of the whole row.
  void Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst);

 private:
  // k-steps that are collected before they are multiplied: a panel's part and the rows that meet it stay in the cache.
  static constexpr int64_t kSteps = 512, kMinSteps = 16;
  static constexpr int64_t kMaxTaps = kSteps / kMinSteps;
  struct Workspace;

  float* Sums(int64_t row);

  const Isa& isa_;
  const Panels& panels_;
  const float* packed_;
  const int64_t panel_begin_, panel_end_, steps_, stride_, max_taps_;
  Workspace& workspace_;
  int64_t rows_ = 0, taps_ = 0;
  bool fresh_ = false;  // the sums are zero but not yet written
  int64_t slots_[kMaxTaps];
};

}  // namespace knnconv::cpu
