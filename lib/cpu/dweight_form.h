// What the forms of a weight gradient share: a thread's tiles, panels of g, the product of the two.
//
// A form is how a block of rows meets the taps of a task's slots: dweight_taps.h, dweight_pairs.h, dweight_lines.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "cpu/dweight_call.h"
#include "cpu/dweight_plan.h"
#include "cpu/isa/isa.h"

namespace knnconv::cpu {

// Two rows of g that are one row of pairs, counted from the block's first; a last one may stand alone.
struct RowPair {
  int32_t first;
  bool whole;
};

// A thread's tiles, kept between tasks.
struct DweightScratch {
  static constexpr int64_t kTileColumns = 56;  // channels of x: four register tiles of AVX-512
  static constexpr int64_t kTileStride = kTileColumns + 16;  // a gather may write zeros past its columns
  static constexpr int64_t kTileElements = 20 * 1024;  // 80 KB
  static_assert(kTileElements >= kPanelRows * kTileStride);
  static constexpr int64_t kSums = kBandArea + kColumnGroup;
  alignas(64) float tile[kTileElements + 16];
  alignas(64) float panels[kPanelElements];
  alignas(64) float sums[kSums];    // [band rows, column_stride], then a row for db
  alignas(64) float totals[kSums];  // untouched, so not resident, where rows are few
  RowRun runs[2 * kPanelRows], chosen_runs[2 * kPanelRows];
  RowRun a_rows[kPanelRows];  // where rows of x start in the tile
  int32_t b_rows[kPanelRows];  // the rows of a panel that they meet
  RowPair pairs[kPanelRows];
  int32_t counted_rows[kMaxBlockRows];
  // Rows of the tile one below the other, and the rows of a panel in turn.
  RowRun tile_rows[kPanelRows];
  int32_t all_rows[kPanelRows];

  DweightScratch() {
    for (int i = 0; i < kPanelRows; ++i) {
      tile_rows[i] = {i * kTileStride, 0, 0};
      all_rows[i] = i;
    }
  }

  static DweightScratch& OfThread() {
    thread_local std::unique_ptr<DweightScratch> scratch(new DweightScratch);
    return *scratch;
  }
};

class DweightForm {
 public:
  DweightForm(const DweightPlan& plan, const DweightCall& call, const DweightTile& at)
      : plan_(plan), call_(call), at_(at) {}

  // The member whose rows come next.
  void Enter(const DweightOperands& operands) { operands_ = operands; }

  // db (+)= the sum of rows [begin, end) of g that count.
  template <typename Taps>
  void AddBias(const Taps& taps, int64_t begin, int64_t end, bool accumulate) {
    constexpr int kChain = 64;  // rows added one by one
    const Source source = AsSource(call_.g_dtype);
    const char* base =
        static_cast<const char*>(operands_.g) + (begin * plan_.columns + at_.column) * ByteWidth(source);
    const int count = taps.CountedRows(begin, end, scratch_.counted_rows);
    float* const sums = SumsOf(at_.slot + at_.slots);
    float part[kColumnGroup];
    if (!accumulate) std::fill_n(sums, plan_.column_stride, 0.0f);
    for (int first = 0; first < count; first += kChain) {
      isa_.sum_rows[int(source)](base, plan_.columns, scratch_.counted_rows + first, std::min(kChain, count - first),
                                 at_.columns, part);
      for (int64_t i = 0; i < at_.columns; ++i) sums[i] += part[i];
    }
  }

 protected:
  using Product = decltype(Isa::outer_product);

  static Source AsSource(Dtype dtype) {
    return dtype == Dtype::kF32 ? Source::kF32 : dtype == Dtype::kF16 ? Source::kF16 : Source::kBF16;
  }

  float* SumsOf(int64_t slot) { return scratch_.sums + (slot - at_.slot) * at_.channels * plan_.column_stride; }

  // x from one of the band's channels on.
  const void* X(int64_t channel) const {
    return static_cast<const char*>(operands_.x) + (at_.channel + channel) * ByteWidth(call_.x_source);
  }

  // Rows [begin, end) of g as fp32 panels.
  void PackRows(int64_t begin, int64_t end) {
    const auto gather = isa_.gather_runs[int(AsSource(call_.g_dtype))];
    Pack(end - begin, [&](int64_t first, int64_t count, int64_t column, int32_t width, float* dst) {
      RowRun runs[kPackedRows];
      for (int64_t i = 0; i < count; ++i) runs[i] = GRow(begin + first + i, column, width);
      gather(operands_.g, runs, count, isa_.outer_columns, dst, isa_.outer_columns);
    });
  }

  // Pairs of rows of g, counted from `begin`, as panels of bfloat16 pairs.
  void PackPairs(int64_t begin, const RowPair* pairs, int64_t count) {
    const auto gather = isa_.gather_pairs[int(Source::kBF16)];
    Pack(count, [&](int64_t first, int64_t n, int64_t column, int32_t width, float* dst) {
      RowRun runs[2 * kPackedRows];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = begin + pairs[first + i].first;
        runs[2 * i] = GRow(row, column, width);
        runs[2 * i + 1] = pairs[first + i].whole ? GRow(row + 1, column, width) : RowRun{};
      }
      gather(operands_.g, runs, n, isa_.outer_columns, dst, isa_.outer_columns);
    });
  }

  // sums[r, :] (+)= sum over k < depth:  a[a_rows[k] + r] * panels[b_rows[k], :], r < rows
  void Multiply(Product product, const float* a, const RowRun* a_rows, const int32_t* b_rows, int64_t depth,
                int64_t rows, float* sums, bool accumulate) {
    const int64_t tiles = CeilDiv(rows, isa_.outer_rows);
    for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
      const int count = int((rows - row + tiles - tile - 1) / (tiles - tile));  // even tiles
      for (int64_t column = 0, panel = 0; column < at_.columns; column += isa_.outer_columns, ++panel) {
        const int columns = int(std::min<int64_t>(isa_.outer_columns, at_.columns - column));
        product(a + row, a_rows, Panel(panel), b_rows, depth, count, columns,
                sums + row * plan_.column_stride + column, plan_.column_stride, accumulate);
      }
      row += count;
    }
  }

  const Isa& isa_ = ActiveIsa();
  DweightScratch& scratch_ = DweightScratch::OfThread();
  const DweightPlan& plan_;
  const DweightCall& call_;
  const DweightTile& at_;
  DweightOperands operands_{};

 private:
  static constexpr int64_t kPackedRows = 8;

  RowRun GRow(int64_t row, int64_t column, int32_t width) const {
    return {row * plan_.columns + at_.column + column, 0, width};
  }

  float* Panel(int64_t panel) { return scratch_.panels + panel * plan_.panel_rows * isa_.outer_columns; }

  // A few rows at a time, all their columns: memory is read along rows. gather(first row, rows, column, width, dst).
  template <typename Gather>
  void Pack(int64_t rows, const Gather& gather) {
    for (int64_t row = 0; row < rows; row += kPackedRows) {
      const int64_t count = std::min(kPackedRows, rows - row);
      for (int64_t column = 0, panel = 0; column < at_.columns; column += isa_.outer_columns, ++panel) {
        const int32_t width = int32_t(std::min<int64_t>(isa_.outer_columns, at_.columns - column));
        gather(row, count, column, width, Panel(panel) + row * isa_.outer_columns);
      }
    }
  }
};

}  // namespace knnconv::cpu
