// dw[v, c, o] = sum over taps (row, source) of slot v:  x[source, c] * g[row, o];   db[o] = sum over rows:  g[row, o]
//
// A matrix product [V*C, taps] @ [taps, O] whose operands are never formed. A task owns a band of dw's rows (whole
// slots, or part of one slot's channels), a group of its columns and a slice of the rows of g. It walks its slice in
// blocks:
//
//     g block, fp32 panels                 for each slot of the band:
//     [panel][block row][outer_columns]      taps -> x rows: fp32 where they lie, others in an fp32 tile [tap, channel]
//                                            sums[channels, columns] += rows^T @ panels   (outer_product)
//
// A sum of millions of taps keeps its low bits: chains of kTapTile in registers, kStretchRows rows in the thread's tile
// of sums, then the total. One slice's total is rounded into dw; several go to `partials` and are added in slice order
// by a second pass. Bound by the multiply-add units from O = 32 or so on, below that by gathering x.
//
// dense_dweight.cc and knn_dweight.cc say where the taps come from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>

#include "cpu/dweight_call.h"
#include "cpu/dweight_plan.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"

namespace knnconv::cpu {

// Taps of one slot that lie in a block of rows, as many as one tile of x holds.
struct TapTile {
  RowRun runs[kTapTile];   // elements of x from the band's first channel on
  int32_t rows[kTapTile];  // rows of g, counted from the block's first
  int count = 0;
};

// A thread's tiles, kept between tasks.
struct DweightScratch {
  static constexpr int64_t kTileColumns = 56;  // channels of x: four register tiles of AVX-512
  static constexpr int64_t kTileStride = kTileColumns + 16;  // a gather may write zeros past its columns
  static constexpr int64_t kSums = kBandArea + kColumnGroup;
  alignas(64) float tile[kTapTile * kTileStride];
  alignas(64) float panels[kPanelElements];
  alignas(64) float sums[kSums];    // [band rows, column_stride], then a row for db
  alignas(64) float totals[kSums];  // untouched, so not resident, where rows are few
  TapTile taps;
  int32_t counted_rows[kMaxBlockRows];
  // Where tile rows start, and the rows of a panel in turn.
  RowRun tile_rows[kTapTile], ones[kTapTile];
  int32_t all_rows[kTapTile];

  DweightScratch() {
    for (int i = 0; i < kTapTile; ++i) {
      tile_rows[i] = {i * kTileStride, 0, 0};
      ones[i] = {};
      all_rows[i] = i;
    }
  }

  static DweightScratch& OfThread() {
    thread_local std::unique_ptr<DweightScratch> scratch(new DweightScratch);
    return *scratch;
  }
};

// One task: a band and a column group of one slice of one group of the result.
//
// Taps has
//   int Stackable(slot, slots): how many slots from `slot` on, of `slots`, one run of x covers, row by row; 0: take
//     slots one by one
//   void Stack(slot, slots, begin, end, runs): those runs for rows [begin, end), clipped to what exists
//   void Start(begin): rows will be asked for in ascending order from `begin` on
//   void Visit(slot, begin, end, push): push(source row's first element, row - begin) for each tap of the slot there
//   int CountedRows(begin, end, rows): rows, counted from `begin`, that count in db
template <typename TapsOf>
class DweightTask {
 public:
  DweightTask(const DweightPlan& plan, const DweightCall& call, const TapsOf& taps_of, const DweightTile& at)
      : plan_(plan), call_(call), taps_of_(taps_of), at_(at), bias_(at.first_band && call.has_bias) {}

  // The band's sums, [slots * channels, column_stride], then db's; valid until the thread's next task.
  const float* Sum() {
    const int64_t sums_size = (at_.slots * at_.channels + (bias_ ? 1 : 0)) * plan_.column_stride;
    float* const totals = scratch_.totals;
    if (at_.row_begin == at_.row_end) {
      std::fill_n(scratch_.sums, sums_size, 0.0f);
      return scratch_.sums;
    }
    for (int64_t begin = at_.row_begin;;) {
      const int64_t end = std::min(begin + kStretchRows, at_.row_end);
      SumStretch(begin, end);
      if (begin == at_.row_begin) {
        if (end == at_.row_end) return scratch_.sums;
        std::copy_n(scratch_.sums, sums_size, totals);
      } else {
        for (int64_t i = 0; i < sums_size; ++i) totals[i] += scratch_.sums[i];
        if (end == at_.row_end) return totals;
      }
      begin = end;
    }
  }

 private:
  void SumStretch(int64_t stretch_begin, int64_t stretch_end) {
    accumulate_ = false;
    for (int64_t row = stretch_begin; row < stretch_end;) {
      const int64_t member = row / plan_.rows, begin = row % plan_.rows;
      const int64_t end = std::min({begin + plan_.block_rows, plan_.rows, begin + stretch_end - row});
      if (member != member_) Enter(member, begin);
      AddBlock(begin, end);
      accumulate_ = true;
      row += end - begin;
    }
  }

  void Enter(int64_t member, int64_t begin) {
    const int64_t group = call_.GroupOf(at_.result, member);
    member_ = member;
    operands_ = call_.Operands(group);
    taps_.emplace(taps_of_(group));
    taps_->Start(begin);
  }

  // Rows [begin, end) of the member.
  void AddBlock(int64_t begin, int64_t end) {
    PackPanels(begin, end);
    if (bias_) AddBias(begin, end);
    for (int64_t slot = at_.slot; slot < at_.slot + at_.slots;) {
      if (taps_->Stackable(slot, 1) > 0) {
        slot = AddStacked(slot, begin, end);
      } else {
        AddSlot(slot++, begin, end);
      }
    }
  }

  float* SumsOf(int64_t slot) { return scratch_.sums + (slot - at_.slot) * at_.channels * plan_.column_stride; }

  // A few rows at a time, all their columns: memory is read along rows.
  void PackPanels(int64_t begin, int64_t end) {
    constexpr int64_t kRows = 8;
    const auto gather_g = isa_.gather_runs[int(call_.g_dtype)];
    RowRun runs[kRows];
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t count = std::min(kRows, end - row);
      for (int64_t column = 0, panel = 0; column < at_.columns; column += isa_.outer_columns, ++panel) {
        const int32_t width = int32_t(std::min<int64_t>(isa_.outer_columns, at_.columns - column));
        for (int64_t i = 0; i < count; ++i) runs[i] = {(row + i) * plan_.columns + at_.column + column, 0, width};
        gather_g(operands_.g, runs, count, isa_.outer_columns, Panel(panel) + (row - begin) * isa_.outer_columns,
                 isa_.outer_columns);
      }
    }
  }

  float* Panel(int64_t panel) { return scratch_.panels + panel * plan_.block_rows * isa_.outer_columns; }

  // db is the weight gradient of a source row that is always 1.
  void AddBias(int64_t begin, int64_t end) {
    static const float one = 1;
    const int count = taps_->CountedRows(begin, end, scratch_.counted_rows);
    float* sums = SumsOf(at_.slot + at_.slots);
    for (int first = 0; first == 0 || first < count; first += kTapTile) {
      Multiply(&one, scratch_.ones, scratch_.counted_rows + first, std::min(kTapTile, count - first), 1, sums,
               accumulate_ || first > 0);
    }
  }

  void AddSlot(int64_t slot, int64_t begin, int64_t end) {
    TapTile& taps = scratch_.taps;
    const auto gather_x = isa_.gather_runs[int(call_.x_source)];
    bool accumulate = accumulate_;
    const auto flush = [&] {
      if (call_.x_source == Source::kF32) {  // no conversion: rows are read where they lie
        Multiply(static_cast<const float*>(X(0)), taps.runs, taps.rows, taps.count, at_.channels, SumsOf(slot),
                 accumulate);
      } else {
        const int64_t parts = CeilDiv(at_.channels, DweightScratch::kTileColumns);
        for (int64_t part = 0; part < parts; ++part) {
          const int64_t channel = at_.channels * part / parts;
          const int channels = int(at_.channels * (part + 1) / parts - channel);
          gather_x(X(channel), taps.runs, taps.count, channels, scratch_.tile, DweightScratch::kTileStride);
          Multiply(scratch_.tile, scratch_.tile_rows, taps.rows, taps.count, channels,
                   SumsOf(slot) + channel * plan_.column_stride, accumulate);
        }
      }
      accumulate = true;
      taps.count = 0;
    };
    taps.count = 0;
    taps_->Visit(slot, begin, end, [&](int64_t source, int64_t row) {
      if (taps.count == kTapTile) flush();
      taps.runs[taps.count] = {source, 0, kWholeRun};
      taps.rows[taps.count++] = int32_t(row);
    });
    if (taps.count > 0 || !accumulate) flush();
  }

  // Slots of few channels side by side in one tile, so that they fill the registers together. Holes become zeros.
  // Returns the first slot that found no place.
  int64_t AddStacked(int64_t slot, int64_t begin, int64_t end) {
    const int64_t first = slot, last = at_.slot + at_.slots;
    const auto gather_x = isa_.gather_runs[int(call_.x_source)];
    int64_t width = 0;
    while (slot < last) {
      const int64_t room = (DweightScratch::kTileColumns - width) / std::max<int64_t>(1, at_.channels);
      if (room == 0) break;
      const int64_t slots = taps_->Stackable(slot, std::min(room, last - slot));
      taps_->Stack(slot, slots, begin, end, scratch_.taps.runs);
      gather_x(X(0), scratch_.taps.runs, end - begin, int(slots * at_.channels), scratch_.tile + width,
               DweightScratch::kTileStride);
      width += slots * at_.channels;
      slot += slots;
    }
    Multiply(scratch_.tile, scratch_.tile_rows, scratch_.all_rows, end - begin, width, SumsOf(first), accumulate_);
    return slot;
  }

  // sums[r, :] (+)= sum over k < depth:  a[a_rows[k] + r] * panels[b_rows[k], :], r < rows
  void Multiply(const float* a, const RowRun* a_rows, const int32_t* b_rows, int64_t depth, int64_t rows, float* sums,
                bool accumulate) {
    const int64_t tiles = CeilDiv(rows, isa_.outer_rows);
    for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
      const int count = int((rows - row + tiles - tile - 1) / (tiles - tile));  // even tiles
      for (int64_t column = 0, panel = 0; column < at_.columns; column += isa_.outer_columns, ++panel) {
        const int columns = int(std::min<int64_t>(isa_.outer_columns, at_.columns - column));
        isa_.outer_product(a + row, a_rows, Panel(panel), b_rows, depth, count, columns,
                           sums + row * plan_.column_stride + column, plan_.column_stride, accumulate);
      }
      row += count;
    }
  }

  // x from one of the band's channels on.
  const void* X(int64_t channel) const {
    return static_cast<const char*>(operands_.x) + (at_.channel + channel) * ByteWidth(call_.x_source);
  }

  const Isa& isa_ = ActiveIsa();
  DweightScratch& scratch_ = DweightScratch::OfThread();
  const DweightPlan& plan_;
  const DweightCall& call_;
  const TapsOf& taps_of_;
  const DweightTile& at_;
  const bool bias_;
  // The member whose rows are being summed.
  int64_t member_ = -1;
  DweightOperands operands_{};
  std::optional<std::decay_t<std::invoke_result_t<TapsOf, int64_t>>> taps_;
  bool accumulate_ = false;  // onto what the stretch's earlier blocks summed
};

// All of a call. taps_of(group) gives the taps of a group of the operands.
template <typename TapsOf>
void RunDweight(ffi::ThreadPool& pool, const DweightPlan& plan, const DweightCall& call, const TapsOf& taps_of) {
  const int64_t weight_size = plan.slots * plan.channels * plan.columns;
  const int64_t partial_size = weight_size + plan.columns;
  const Isa& isa = ActiveIsa();

  ParallelFor(pool, plan.tasks(), [&](int64_t task) {
    const DweightTile at = plan.Tile(task);
    DweightResults to = call.Results(at.result);
    if (plan.slices > 1) {
      float* const partial = call.partials + (at.result * plan.slices + at.slice) * partial_size;
      to = {partial, Dtype::kF32, partial + weight_size, Dtype::kF32};
    }
    const int64_t rows = at.slots * at.channels, bias_rows = at.first_band && call.has_bias ? 1 : 0;
    const float* sums = DweightTask(plan, call, taps_of, at).Sum();
    const int64_t first = (at.slot * plan.channels + at.channel) * plan.columns + at.column;
    for (int64_t r = 0; r < rows; ++r, sums += plan.column_stride) {
      isa.store[int(to.dw_dtype)](sums, at.columns, Offset(to.dw, to.dw_dtype, first + r * plan.columns));
    }
    if (bias_rows > 0) isa.store[int(to.db_dtype)](sums, at.columns, Offset(to.db, to.db_dtype, at.column));
  });

  if (plan.slices == 1) return;
  constexpr int64_t kChunk = 4096;
  const int64_t summed = call.has_bias ? partial_size : weight_size;
  const int64_t chunks = CeilDiv(summed, kChunk);
  ParallelFor(pool, plan.results * chunks, [&](int64_t task) {
    const int64_t result = task / chunks, begin = task % chunks * kChunk, end = std::min(begin + kChunk, summed);
    const DweightResults to = call.Results(result);
    const float* partial = call.partials + result * plan.slices * partial_size;
    float sums[kChunk];
    std::memcpy(sums, partial + begin, (end - begin) * sizeof(float));
    for (int64_t slice = 1; slice < plan.slices; ++slice) {
      const float* more = partial + slice * partial_size + begin;
      for (int64_t i = 0; i < end - begin; ++i) sums[i] += more[i];
    }
    const int64_t split = std::clamp(weight_size, begin, end);
    if (begin < split) {
      isa.store[int(to.dw_dtype)](sums, split - begin, Offset(to.dw, to.dw_dtype, begin));
    }
    if (split < end) {
      isa.store[int(to.db_dtype)](sums + (split - begin), end - split,
                                  Offset(to.db, to.db_dtype, split - weight_size));
    }
  });
}

}  // namespace knnconv::cpu
