// dw[v, c, o] = sum over taps (row, source) of slot v:  x[source, c] * g[row, o];   db[o] = sum over rows:  g[row, o]
//
// A matrix product [V*C, taps] @ [taps, O] whose operands are never formed. A task owns a band of dw's rows (whole
// slots, or part of one slot's channels), a group of its columns and a slice of the rows of g. It walks its slice in
// blocks of rows of g, which a form packs as panels and multiplies with the rows of x that the taps name:
//
//     TapForm    taps that lie anywhere, or are missing
//     PairForm   one tap a row and slot, in bfloat16: two rows a step
//     LineForm   output lines of a dense window, in both manners
//
// A sum of millions of taps keeps its low bits: chains of kTapTile in registers, kStretchRows rows in the thread's tile
// of sums, then the total. One slice's total is rounded into dw; several go to `partials` and are added in slice order
// by a second pass. Bound by the multiply-add units from O = 32 or so on, below that by gathering x.
//
// dense_taps.h and knn_dweight.cc say where the taps come from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "cpu/dweight_call.h"
#include "cpu/dweight_form.h"
#include "cpu/dweight_plan.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"

namespace knnconv::cpu {

// One task: a band and a column group of one slice of one group of the result.
//
// Taps has
//   void Start(begin): rows will be asked for in ascending order from `begin` on
//   void Visit(slot, begin, end, push): push(source row's first element, row - begin) for each tap of the slot there
//   kHasRuns: whether no row has several taps of a slot, and then
//   void Runs(slot, begin, end, runs): each row's source, empty runs for holes
//   int CountedRows(begin, end, rows): rows, counted from `begin`, that count in db
template <typename Form, typename TapsOf>
class DweightTask {
 public:
  DweightTask(const DweightPlan& plan, const DweightCall& call, const TapsOf& taps_of, const DweightTile& at)
      : plan_(plan), call_(call), taps_of_(taps_of), at_(at), bias_(at.first_band && call.has_bias),
        form_(plan, call, at) {}

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
    bool accumulate = false;  // onto what the stretch's earlier blocks summed
    for (int64_t row = stretch_begin; row < stretch_end; accumulate = true) {
      const int64_t member = row / plan_.rows, begin = row % plan_.rows;
      const int64_t end = std::min({begin + plan_.block_rows, plan_.rows, begin + stretch_end - row});
      if (member != member_) Enter(member, begin);
      form_.AddBlock(*taps_, begin, end, accumulate);
      if (bias_) form_.AddBias(*taps_, begin, end, accumulate);
      row += end - begin;
    }
  }

  void Enter(int64_t member, int64_t begin) {
    const int64_t group = call_.GroupOf(at_.result, member);
    member_ = member;
    form_.Enter(call_.Operands(group));
    taps_.emplace(taps_of_(group));
    taps_->Start(begin);
  }

  DweightScratch& scratch_ = DweightScratch::OfThread();
  const DweightPlan& plan_;
  const DweightCall& call_;
  const TapsOf& taps_of_;
  const DweightTile& at_;
  const bool bias_;
  Form form_;
  // The member whose rows are being summed.
  int64_t member_ = -1;
  std::optional<std::decay_t<std::invoke_result_t<TapsOf, int64_t>>> taps_;
};

// All of a call. taps_of(group) gives the taps of a group of the operands.
template <typename Form, typename TapsOf>
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
    const float* sums = DweightTask<Form, TapsOf>(plan, call, taps_of, at).Sum();
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
