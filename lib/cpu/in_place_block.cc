#include "cpu/in_place_block.h"

#include <algorithm>
#include <vector>

namespace knnconv::cpu {

struct InPlaceBlock::Workspace {
  std::vector<float> zeros;  // a source row of zeros, for holes
  std::vector<float> sums, room;
  const void* sources[kMaxTaps * kRows];

  static Workspace& OfThread(int64_t steps, int64_t sums) {
    static thread_local Workspace workspace;
    if (static_cast<int64_t>(workspace.zeros.size()) < steps) workspace.zeros.resize(steps);
    if (static_cast<int64_t>(workspace.sums.size()) < sums + 16) workspace.sums = std::vector<float>(sums + 16);
    return workspace;
  }
};

InPlaceBlock::InPlaceBlock(const Isa& isa, const Panels& panels, const float* packed, int64_t panel_begin,
                           int64_t panel_end, int64_t run)
    : isa_(isa), panels_(panels), packed_(packed), panel_begin_(panel_begin), panel_end_(panel_end),
      steps_(panels.depth() * run),
      // 16 more, so that rows of a tile do not share a cache set.
      stride_((panel_end - panel_begin) * kPanelColumns + 16),
      max_taps_(std::clamp<int64_t>(kSteps / steps_, 1, kMaxTaps)),
      workspace_(Workspace::OfThread(steps_, kRows * stride_)) {}

const void* InPlaceBlock::zeros() const { return workspace_.zeros.data(); }

float* InPlaceBlock::Sums(int64_t row) {
  // Whole cache lines: the vector's own address is 16-byte aligned.
  const uintptr_t address = reinterpret_cast<uintptr_t>(workspace_.sums.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64) + row * stride_;
}

void InPlaceBlock::Begin(int64_t rows) {
  rows_ = rows;
  taps_ = 0;
  fresh_ = true;
}

const void** InPlaceBlock::NextTap(int64_t slot) {
  if (taps_ == max_taps_) Multiply();
  slots_[taps_] = slot;
  return workspace_.sources + rows_ * taps_++;
}

float* InPlaceBlock::Room(int64_t row) {
  const int64_t floats = kMaxTaps * kRows * kMinSteps;
  if (workspace_.room.empty()) workspace_.room.resize(floats);
  return workspace_.room.data() + ((taps_ - 1) * kRows + row) * steps_;
}

void InPlaceBlock::Add(int64_t slot, const void* const* source_rows) {
  const void** row = NextTap(slot);
  for (int64_t r = 0; r < rows_; ++r) row[r] = source_rows[r] != nullptr ? source_rows[r] : zeros();
}

void InPlaceBlock::Multiply() {
  if (taps_ == 0) return;
  const bool accumulate = !fresh_;
  fresh_ = false;
  const auto product = panels_.pairs() ? isa_.in_place_pair_product : isa_.in_place_product;
  // Tiles of equal height: 16 rows are better two tiles of 8 than 14 and 2.
  const int64_t tiles = CeilDiv(rows_, isa_.tile_rows);
  const float* weights[kMaxTaps];
  for (int64_t panel = panel_begin_; panel < panel_end_; ++panel) {
    for (int64_t t = 0; t < taps_; ++t) {
      weights[t] = panels_.Address(packed_, panel, panels_.Position(slots_[t], 0));
    }
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = rows_ * i / tiles, end = rows_ * (i + 1) / tiles;
      product(workspace_.sources + begin, rows_, weights, taps_, static_cast<int>(end - begin), steps_,
              panels_.PanelColumns(panel), Sums(begin) + (panel - panel_begin_) * kPanelColumns, stride_, accumulate);
    }
  }
  taps_ = 0;
}

void InPlaceBlock::Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst) {
  if (fresh_) {
    std::fill(Sums(0), Sums(rows_), 0.0f);
    fresh_ = false;
  }
  const int64_t first = panel_begin_ * kPanelColumns;
  const int64_t columns = std::min(panels_.columns(), panel_end_ * kPanelColumns) - first;
  void* out[kRows];
  for (int64_t i = 0; i < count; ++i) out[i] = dst[i] + first * ByteWidth(dtype);
  isa_.store_biased[static_cast<int>(dtype)](Sums(row), stride_, count, bias ? bias + first : nullptr, columns, out);
}

}  // namespace knnconv::cpu
