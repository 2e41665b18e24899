#include "cpu/dot_block.h"

#include <algorithm>
#include <vector>

namespace knnconv::cpu {

struct DotBlock::Workspace {
  std::vector<char> zeros;  // a source row of zeros, for holes
  const void* sources[kTaps * kDotBlockRows];
  alignas(64) float sums[kDotBlockRows * kRowSums];

  static Workspace& OfThread(int64_t row_bytes) {
    static thread_local Workspace workspace;
    if (static_cast<int64_t>(workspace.zeros.size()) < row_bytes) workspace.zeros.resize(row_bytes);
    return workspace;
  }
};

DotBlock::DotBlock(const Isa& isa, Source source, const Panels& panels, const float* packed)
    : isa_(isa), source_(source), panels_(panels), packed_(packed),
      workspace_(Workspace::OfThread(panels.depth() * ByteWidth(source))) {}

float* DotBlock::Sums(int64_t row) { return workspace_.sums + row * kRowSums; }

void DotBlock::Select(int64_t first, int64_t count) {
  Multiply();
  Write(first_, selected_);
  first_ = first;
  selected_ = count;
  fresh_ = true;
}

void DotBlock::Write(int64_t first, int64_t count) {
  if (fresh_) std::fill(Sums(first), Sums(first + count), 0.0f);
  fresh_ = false;
}

const void* DotBlock::zeros() const { return workspace_.zeros.data(); }

const void** DotBlock::NextTap(int64_t slot) {
  if (taps_ == kTaps) Multiply();
  weights_[taps_] = panels_.Address(packed_, 0, panels_.Position(slot, 0));
  return workspace_.sources + selected_ * taps_++;
}

void DotBlock::Add(int64_t slot, const void* const* source_rows) {
  const void** row = NextTap(slot);
  for (int64_t r = 0; r < selected_; ++r) row[r] = source_rows[r] != nullptr ? source_rows[r] : zeros();
}

void DotBlock::AddFloats(int64_t slot, int64_t row, const float* source_row) {
  Multiply();
  Write(first_, selected_);
  const void* source = source_row;
  const float* weight = panels_.Address(packed_, 0, panels_.Position(slot, 0));
  isa_.dot_product[static_cast<int>(Source::kF32)](&source, 1, &weight, 1, 1, panels_.depth(),
                                                   static_cast<int>(panels_.columns()), Sums(first_ + row), true);
}

void DotBlock::Multiply() {
  if (taps_ == 0) return;
  isa_.dot_product[static_cast<int>(source_)](workspace_.sources, selected_, weights_, taps_,
                                              static_cast<int>(selected_), panels_.depth(),
                                              static_cast<int>(panels_.columns()), Sums(first_), !fresh_);
  fresh_ = false;
  taps_ = 0;
}

void DotBlock::Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst) {
  Write(first_, selected_);
  const int columns = static_cast<int>(panels_.columns());
  float folded[kDotBlockRows * kDotColumns];
  void* out[kDotBlockRows];
  isa_.fold_lanes(Sums(row), count, columns, folded);
  for (int64_t i = 0; i < count; ++i) out[i] = dst[i];
  isa_.store_biased[static_cast<int>(dtype)](folded, kDotColumns, count, bias, columns, out);
}

}  // namespace knnconv::cpu
