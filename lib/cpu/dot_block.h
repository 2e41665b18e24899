// A block of output rows of few columns: the same steps as TileBlock's, with the lanes over the reduced channels.
//
//     sums[row, :] += sum over taps:  source_row(tap) . weight[slot(tap)]
//
// Nothing is gathered: source rows are read where they lie, as their elements meet no more than kDotColumns columns.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa/isa.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

class DotBlock {
 public:
  DotBlock(const Isa& isa, Source source, const Panels& panels, const float* packed);

  // Starts a block of at most kDotBlockRows rows whose sums are zero.
  void Begin(int64_t rows);
  // One tap of every row: the source row, or null for a hole.
  void Add(int64_t slot, const void* const* source_rows);
  // One tap of one row, its source row given as D floats.
  void AddFloats(int64_t slot, int64_t row, const float* source_row);
  // Multiplies the taps added so far.
  void Multiply();
  // dst[i][:] = round(sums[row + i, :] + bias[:]).
  void Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst);

 private:
  static constexpr int64_t kTaps = 64;  // collected before they are multiplied

  const Isa& isa_;
  const Source source_;
  const Panels& panels_;
  const float* packed_;
  int64_t rows_ = 0, taps_ = 0;
  std::vector<char> zeros_;             // a source row of zeros, for holes
  std::vector<const void*> sources_;    // [kTaps][rows]
  const float* weights_[kTaps];
  std::vector<float> sums_;             // [rows][kDotColumns][kDotLanes]
};

inline constexpr int64_t kDotBlockRows = 48;

}  // namespace knnconv::cpu
