// A block of rows of g, fp32, against taps that lie anywhere:
//
//     g block, fp32 panels                 for each slot of the band:
//     [panel][block row][outer_columns]      taps -> x rows: fp32 where they lie, others in an fp32 tile [tap, channel]
//                                            sums[channels, columns] += rows^T @ panels   (outer_product)
//
// Slots of few channels stand side by side in one tile, so that they fill the registers together.
#pragma once

#include "cpu/dweight_form.h"

namespace knnconv::cpu {

class TapForm : public DweightForm {
 public:
  using DweightForm::DweightForm;

  // Rows [begin, end) of the member. dweight.h says what Taps has.
  template <typename Taps>
  void AddBlock(Taps& taps, int64_t begin, int64_t end, bool accumulate) {
    PackRows(begin, end);
    const int64_t last = at_.slot + at_.slots;
    int64_t slot = at_.slot;
    if constexpr (Taps::kHasRuns) {
      while (call_.channels <= kStackedChannels && slot < last) slot = AddStacked(taps, slot, begin, end, accumulate);
    }
    for (; slot < last; ++slot) AddSlot(taps, slot, begin, end, accumulate);
  }

 private:
  template <typename Taps>
  void AddSlot(Taps& taps, int64_t slot, int64_t begin, int64_t end, bool accumulate) {
    const auto gather = isa_.gather_runs[int(call_.x_source)];
    int count = 0;
    const auto flush = [&] {
      if (call_.x_source == Source::kF32) {  // no conversion: rows are read where they lie
        Multiply(isa_.outer_product, static_cast<const float*>(X(0)), scratch_.runs, scratch_.b_rows, count,
                 at_.channels, SumsOf(slot), accumulate);
      } else {
        const int64_t parts = CeilDiv(at_.channels, DweightScratch::kTileColumns);
        for (int64_t part = 0; part < parts; ++part) {
          const int64_t channel = at_.channels * part / parts;
          const int channels = int(at_.channels * (part + 1) / parts - channel);
          gather(X(channel), scratch_.runs, count, channels, scratch_.tile, DweightScratch::kTileStride);
          Multiply(isa_.outer_product, scratch_.tile, scratch_.tile_rows, scratch_.b_rows, count, channels,
                   SumsOf(slot) + channel * plan_.column_stride, accumulate);
        }
      }
      accumulate = true;
      count = 0;
    };
    taps.Visit(slot, begin, end, [&](int64_t source, int64_t row) {
      if (count == kTapTile) flush();
      scratch_.runs[count] = {source, 0, kWholeRun};
      scratch_.b_rows[count++] = int32_t(row);
    });
    if (count > 0 || !accumulate) flush();
  }

  // As many slots from `slot` on as a tile holds; holes become zeros. Returns the first slot that found no place.
  template <typename Taps>
  int64_t AddStacked(Taps& taps, int64_t slot, int64_t begin, int64_t end, bool accumulate) {
    const auto gather = isa_.gather_runs[int(call_.x_source)];
    const int64_t first = slot, last = at_.slot + at_.slots;
    int64_t width = 0;
    for (; slot < last && width + at_.channels <= DweightScratch::kTileColumns; ++slot, width += at_.channels) {
      taps.Runs(slot, begin, end, scratch_.runs);
      gather(X(0), scratch_.runs, end - begin, int(at_.channels), scratch_.tile + width, DweightScratch::kTileStride);
    }
    Multiply(isa_.outer_product, scratch_.tile, scratch_.tile_rows, scratch_.all_rows, end - begin, width,
             SumsOf(first), accumulate);
    return slot;
  }
};

}  // namespace knnconv::cpu
