// A block of output rows of few columns: the same steps as TileBlock's, with the lanes over the reduced channels.
//
//     sums[row, :] += sum over taps:  source_row(tap) . weight[slot(tap)]
//
// Nothing is gathered: source rows are read where they lie, as their elements meet no more than kDotColumns columns.
#pragma once

#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

inline constexpr int64_t kDotBlockRows = 96;

class DotBlock {
 public:
  // Sums in this thread's workspace: one DotBlock a thread at a time.
  DotBlock(const Isa& isa, Source source, const Panels& panels, const float* packed);

  // Starts a block of at most kDotBlockRows rows: the taps that follow add to sums of zero in rows [first, first +
  // count). Every row of a block is selected once.
  void Select(int64_t first, int64_t count);
  // One tap of every selected row: where its row pointers are to be written; zeros() stands for a hole.
  const void** NextTap(int64_t slot);
  const void* zeros() const;
  // The same with null for a hole.
  void Add(int64_t slot, const void* const* source_rows);
  // One tap of one selected row, its source row given as D floats.
  void AddFloats(int64_t slot, int64_t row, const float* source_row);
  // Multiplies the taps added so far.
  void Multiply();
  // dst[i][:] = round(sums[row + i, :] + bias[:]).
  void Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst);

 private:
  static constexpr int64_t kTaps = 32;  // collected before they are multiplied
  static constexpr int64_t kRowSums = kDotColumns * kDotLanes;
  struct Workspace;

  float* Sums(int64_t row);
  void Write(int64_t first, int64_t count);

  const Isa& isa_;
  const Source source_;
  const Panels& panels_;
  const float* packed_;
  Workspace& workspace_;
  int64_t first_ = 0, selected_ = 0, taps_ = 0;
  bool fresh_ = false;  // the selected rows' sums are zero but not yet written
  const float* weights_[kTaps];
};

}  // namespace knnconv::cpu
