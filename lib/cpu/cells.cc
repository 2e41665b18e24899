#include "cpu/cells.h"

#include <algorithm>

namespace knnconv::cpu {

void CellList::Sort() {
  starts_.assign(slots_ + 1, 0);
  for (const Cell& cell : cells_) ++starts_[cell.slot + 1];
  for (size_t s = 1; s < starts_.size(); ++s) starts_[s] += starts_[s - 1];
  sorted_.resize(cells_.size());
  for (const Cell& cell : cells_) sorted_[starts_[cell.slot]++] = cell;
}

// Rows of one tile while they are collected: each takes one cell and one batch entry.
class CellList::Batcher {
 public:
  Batcher(const Isa& isa, Source read, const KnnBlock& block, int64_t depth, TileBlock& tile)
      : isa_(isa), read_(read), block_(block), depth_(depth), width_(ByteWidth(read)), tile_(tile) {}

  // The tile's row `at` reads the cell's source rows in batch entry b.
  void Set(int64_t at, const Cell& cell, int64_t b) {
    const char* batch = block_.Batch(b);
    for (int64_t t = 0; t < std::min<int64_t>(cell.count, 4); ++t) {
      PrefetchRow(batch + cell.sources[t] * block_.row_bytes, block_.row_bytes);
    }
    if (cell.count == 1) {
      pointers_[at] = batch + cell.sources[0] * block_.row_bytes;
    } else {
      pointers_[at] = nullptr;
      sums_[sum_count_++] = {&cell, static_cast<int32_t>(at), static_cast<int32_t>(b)};
    }
  }

  // Gathers the rows set so far.
  void Add(int64_t slot) {
    tile_.Add(slot, 1, pointers_, [&](int64_t begin, int64_t n, float* a) {
      for (int i = 0; i < sum_count_; ++i) {
        const Sum& sum = sums_[i];
        float* dst = a + sum.at * kTileDepthStride;
        if (sum.cell->hub != nullptr) {
          const float* total = sum.cell->hub + (block_.batches.begin + sum.b) * depth_ + begin;
          std::copy(total, total + n, dst);
        } else {
          const char* base = block_.Batch(sum.b) + begin * width_;
          SumTaps(isa_, read_, base, depth_, sum.cell->sources, sum.cell->count, n, dst);
        }
      }
    });
    sum_count_ = 0;
  }

  void Clear(int64_t rows) { std::fill(pointers_, pointers_ + rows, nullptr); }

 private:
  struct Sum { const Cell* cell; int32_t at, b; };

  const Isa& isa_;
  const Source read_;
  const KnnBlock& block_;
  const int64_t depth_, width_;
  TileBlock& tile_;
  const void* pointers_[kBlockRows];
  Sum sums_[kBlockRows];
  int sum_count_ = 0;
};

void CellList::Multiply(const Isa& isa, Source read, const KnnBlock& block, int64_t depth, bool whole, int64_t rows,
                        TileBlock& tile) {
  Batcher batcher(isa, read, block, depth, tile);
  const int64_t batches = block.batches.size();
  int32_t selection[kBlockRows];
  int64_t count = 0;
  if (whole) {
    tile.Select(rows);
    batcher.Clear(rows);
  }
  auto flush = [&](int64_t slot) {
    if (count == 0) return;
    if (whole) {
      batcher.Add(slot);
      batcher.Clear(rows);
    } else {
      tile.Select(selection, count);
      batcher.Add(slot);
      tile.Multiply();
    }
    count = 0;
  };
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const Cell& cell = sorted_[i];
    // A tile adds to a row once: a table whose rows are not in slot order may show a cell's taps in two places.
    if (i > 0 && (sorted_[i - 1].slot != cell.slot || sorted_[i - 1].node == cell.node)) flush(sorted_[i - 1].slot);
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t row = cell.node * batches + b;
      if (count == kBlockRows) flush(cell.slot);
      selection[count] = static_cast<int32_t>(row);
      batcher.Set(whole ? row : count, cell, b);
      ++count;
    }
  }
  if (!sorted_.empty()) flush(sorted_.back().slot);
  tile.Multiply();
}

}  // namespace knnconv::cpu
