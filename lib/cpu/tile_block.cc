#include "cpu/tile_block.h"

#include <algorithm>
#include <vector>

namespace knnconv::cpu {
namespace {

float* Workspace(int64_t floats) {
  static thread_local std::vector<float> workspace;
  if (static_cast<int64_t>(workspace.size()) < floats + 16) workspace = std::vector<float>(floats + 16);
  // Whole cache lines: the vector's own address is 16-byte aligned.
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
}

}  // namespace

TileBlock::TileBlock(const Isa& isa, Source source, const Panels& panels, const float* packed, int64_t panel_begin,
                     int64_t panel_end, int64_t max_rows)
    : isa_(isa), source_(source), panels_(panels), packed_(packed), panel_begin_(panel_begin), panel_end_(panel_end),
      first_column_(panel_begin * kPanelColumns),
      columns_(std::min(panels.columns(), panel_end * kPanelColumns) - first_column_),
      // 16 more, so that rows of a tile do not share a cache set.
      stride_((panel_end - panel_begin) * kPanelColumns + 16) {
  constexpr int64_t kTileFloats = kBlockRows * kTileDepthStride;
  tile_ = Workspace(kTileFloats + max_rows * stride_);
  sums_ = tile_ + kTileFloats;
}

void TileBlock::Begin(int64_t rows) {
  rows_ = rows;
  fresh_ = true;
  used_ = step_count_ = 0;
}

void TileBlock::Select(int64_t count) {
  if (used_ > 0) Multiply();
  selection_ = nullptr;
  selected_ = count;
}

void TileBlock::Select(const int32_t* rows, int64_t count) {
  if (used_ > 0) Multiply();
  if (fresh_) {
    std::fill(sums_, sums_ + rows_ * stride_, 0.0f);
    fresh_ = false;
  }
  selection_ = rows;
  selected_ = count;
}

void TileBlock::Append(int64_t position, int64_t length) {
  Step* last = step_count_ > 0 ? &steps_[step_count_ - 1] : nullptr;
  if (last != nullptr && last->position + last->length == position) {
    last->length += length;
  } else {
    steps_[step_count_++] = {position, used_, static_cast<int32_t>(length)};
  }
  used_ += length;
}

void TileBlock::Multiply() {
  if (used_ == 0) return;
  float* c[kBlockRows];
  for (int64_t r = 0; r < selected_; ++r) c[r] = Sums(selection_ ? selection_[r] : r);
  Segment segments[kTileDepth];
  for (int i = 0; i < step_count_; ++i) segments[i] = {nullptr, steps_[i].a, steps_[i].length};
  const bool accumulate = !fresh_;
  fresh_ = false;

  // Tiles of equal height: 16 rows are better two tiles of 8 than 14 and 2.
  const int64_t tiles = CeilDiv(selected_, isa_.tile_rows);
  const auto product = panels_.pairs() ? isa_.pair_product : isa_.tile_product;
  for (int64_t panel = panel_begin_; panel < panel_end_; ++panel) {
    for (int i = 0; i < step_count_; ++i) segments[i].b = panels_.Address(packed_, panel, steps_[i].position);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = selected_ * t / tiles, end = selected_ * (t + 1) / tiles;
      product(tile_ + begin * kTileDepthStride, segments, step_count_, static_cast<int>(end - begin),
              panels_.PanelColumns(panel), c + begin, (panel - panel_begin_) * kPanelColumns, accumulate);
    }
  }
  used_ = step_count_ = 0;
}

void TileBlock::Store(int64_t row, int64_t count, const float* bias, Dtype dtype, char* const* dst) {
  if (fresh_) {
    std::fill(sums_, sums_ + rows_ * stride_, 0.0f);
    fresh_ = false;
  }
  void* columns[kBlockRows];
  for (int64_t first = 0; first < count; first += kBlockRows) {
    const int64_t n = std::min<int64_t>(kBlockRows, count - first);
    for (int64_t i = 0; i < n; ++i) columns[i] = dst[first + i] + first_column_ * ByteWidth(dtype);
    isa_.store_biased[static_cast<int>(dtype)](Sums(row + first), stride_, n, bias ? bias + first_column_ : nullptr,
                                              columns_, columns);
  }
}

}  // namespace knnconv::cpu
