// A block of rows of g as pairs of bfloat16, against one tap a row and slot:
//
//     g block, panels of pairs             for each slot of the band:
//     [panel][row pair][outer_columns]       runs of x -> tile of pairs [row pair, channel]; holes become zeros
//                                            sums[channels, columns] += tile^T @ panels   (outer_pair_product)
//
// A pair is rows 2i and 2i + 1 of the block: what the instruction reduces over. Slots of few channels stand side by
// side.
#pragma once

#include "cpu/dweight_form.h"

namespace knnconv::cpu {

class PairForm : public DweightForm {
 public:
  using DweightForm::DweightForm;

  // Rows [begin, end) of the member. dweight.h says what Taps has; needs kHasRuns.
  template <typename Taps>
  void AddBlock(Taps& taps, int64_t begin, int64_t end, bool accumulate) {
    const int64_t rows = end - begin, pairs = CeilDiv(rows, 2);
    for (int64_t i = 0; i < pairs; ++i) scratch_.pairs[i] = {int32_t(2 * i), 2 * i + 1 < rows};
    PackPairs(begin, scratch_.pairs, pairs);
    for (int64_t slot = at_.slot; slot < at_.slot + at_.slots;) {
      if (call_.channels <= kStackedChannels) {
        slot = AddStacked(taps, slot, begin, end, accumulate);
      } else {
        AddSlot(taps, slot++, begin, end, accumulate);
      }
    }
  }

 private:
  // The slot's runs, as many as make whole pairs.
  template <typename Taps>
  void FillRuns(Taps& taps, int64_t slot, int64_t begin, int64_t end) {
    taps.Runs(slot, begin, end, scratch_.runs);
    scratch_.runs[end - begin] = RowRun{};
  }

  template <typename Taps>
  void AddSlot(Taps& taps, int64_t slot, int64_t begin, int64_t end, bool accumulate) {
    const auto gather = isa_.gather_pairs[int(call_.x_source)];
    FillRuns(taps, slot, begin, end);
    // Pairs of holes are left out.
    int64_t count = 0;
    for (int64_t i = 0; 2 * i < end - begin; ++i) {
      const RowRun low = scratch_.runs[2 * i], high = scratch_.runs[2 * i + 1];
      scratch_.chosen_runs[2 * count] = low;
      scratch_.chosen_runs[2 * count + 1] = high;
      scratch_.b_rows[count] = int32_t(i);
      count += low.end > low.begin || high.end > high.begin;
    }
    const int64_t parts = CeilDiv(at_.channels, DweightScratch::kTileColumns);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t channel = at_.channels * part / parts;
      const int channels = int(at_.channels * (part + 1) / parts - channel);
      gather(X(channel), scratch_.chosen_runs, count, channels, scratch_.tile, DweightScratch::kTileStride);
      Multiply(isa_.outer_pair_product, scratch_.tile, scratch_.tile_rows, scratch_.b_rows, count, channels,
               SumsOf(slot) + channel * plan_.column_stride, accumulate);
    }
  }

  // As many slots from `slot` on as a tile holds. Returns the first slot that found no place.
  template <typename Taps>
  int64_t AddStacked(Taps& taps, int64_t slot, int64_t begin, int64_t end, bool accumulate) {
    const auto gather = isa_.gather_pairs[int(call_.x_source)];
    const int64_t first = slot, last = at_.slot + at_.slots, pairs = CeilDiv(end - begin, 2);
    int64_t width = 0;
    for (; slot < last && width + at_.channels <= DweightScratch::kTileColumns; ++slot, width += at_.channels) {
      FillRuns(taps, slot, begin, end);
      gather(X(0), scratch_.runs, pairs, int(at_.channels), scratch_.tile + width, DweightScratch::kTileStride);
    }
    Multiply(isa_.outer_pair_product, scratch_.tile, scratch_.tile_rows, scratch_.all_rows, pairs, width, SumsOf(first),
             accumulate);
    return slot;
  }
};

}  // namespace knnconv::cpu
