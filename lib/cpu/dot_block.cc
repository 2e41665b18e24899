#include "cpu/dot_block.h"

#include <algorithm>

namespace knnconv::cpu {
namespace {

constexpr int64_t kRowSums = kDotColumns * kDotLanes;

}  // namespace

DotBlock::DotBlock(const Isa& isa, Source source, const Panels& panels, const float* packed)
    : isa_(isa), source_(source), panels_(panels), packed_(packed), zeros_(panels.depth() * ByteWidth(source)),
      sources_(kTaps * kDotBlockRows), sums_(kDotBlockRows * kRowSums) {}

void DotBlock::Begin(int64_t rows) {
  rows_ = rows;
  taps_ = 0;
  std::fill(sums_.begin(), sums_.begin() + rows * kRowSums, 0.0f);
}

void DotBlock::Add(int64_t slot, const void* const* source_rows) {
  if (taps_ == kTaps) Multiply();
  const void** row = &sources_[taps_ * rows_];
  for (int64_t r = 0; r < rows_; ++r) row[r] = source_rows[r] != nullptr ? source_rows[r] : zeros_.data();
  weights_[taps_++] = panels_.Address(packed_, 0, panels_.Position(slot, 0));
}

void DotBlock::AddFloats(int64_t slot, int64_t row, const float* source_row) {
  Multiply();
  const void* source = source_row;
  const float* weight = panels_.Address(packed_, 0, panels_.Position(slot, 0));
  isa_.dot_product[static_cast<int>(Source::kF32)](&source, 1, &weight, 1, 1, panels_.depth(),
                                                   static_cast<int>(panels_.columns()), &sums_[row * kRowSums], true);
}

void DotBlock::Multiply() {
  if (taps_ == 0) return;
  isa_.dot_product[static_cast<int>(source_)](sources_.data(), rows_, weights_, taps_, static_cast<int>(rows_),
                                              panels_.depth(), static_cast<int>(panels_.columns()), sums_.data(), true);
  taps_ = 0;
}

void DotBlock::Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst) {
  for (int64_t i = 0; i < count; ++i) {
    float folded[kDotColumns];
    isa_.fold_lanes(&sums_[(row + i) * kRowSums], static_cast<int>(panels_.columns()), folded);
    void* out = dst[i];
    isa_.store_biased[static_cast<int>(dtype)](folded, 0, 1, bias, panels_.columns(), &out);
  }
}

}  // namespace knnconv::cpu
