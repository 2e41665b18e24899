// A block of output pixels against the taps of a dense window, one kernel row at a time:
//
//     g block, panels                       for each kernel row fh:
//     [panel][pixel][outer_columns]           lines of x that it reads -> fp32 tile [x pixel, channel], zeros past the
//                                             rim; sums[(fw, channels), columns] += rows^T @ panels   (outer_product)
//
// The slots of a kernel row read the same tile, each from its own pixel on: an element of x is converted once a kernel
// row, and with dilation 1 the slots' channels lie side by side, as in dw. In bfloat16 a row is a pair of output pixels
// of one line, and an element of the tile the pair of x pixels that one slot reads for them. Bound by the multiply-add
// units; taps past the rim cost as much as others.
#pragma once

#include "cpu/dense_taps.h"
#include "cpu/dweight_form.h"

namespace knnconv::cpu {

template <bool kPairs>
class LineForm : public DweightForm {
 public:
  LineForm(const DweightPlan& plan, const DweightCall& call, const DweightTile& at)
      : DweightForm(plan, call, at), gather_((kPairs ? isa_.gather_pairs : isa_.gather_runs)[int(call.x_source)]) {}

  // Whether a tile takes channels enough, and either few taps lie past the rim or channels are few.
  static bool Suits(const DweightPlan& plan, const DenseTaps& taps) {
    if (kPairs && taps.out_width < kMinPairedWidth) return false;
    return TileChannels(plan, taps) >= std::min<int64_t>(plan.channels, kMinChannels) &&
           (taps.channels <= kStackedChannels || 16 * taps.InsideColumns() >= 15 * taps.kernel_width * taps.out_width);
  }

  // Rows [begin, end) of the member.
  void AddBlock(const DenseTaps& taps, int64_t begin, int64_t end, bool accumulate) {
    if constexpr (kPairs) {
      int64_t count = 0;
      taps.Pieces(begin, end, [&](int64_t row, int64_t stop, int64_t) {
        for (; row < stop; row += 2) scratch_.pairs[count++] = {int32_t(row - begin), row + 1 < stop};
      });
      PackPairs(begin, scratch_.pairs, count);
    } else {
      PackRows(begin, end);
    }
    for (int64_t slot = at_.slot, last = at_.slot + at_.slots; slot < last;) {
      const int64_t slots = std::min(taps.kernel_width - slot % taps.kernel_width, last - slot);
      AddSlots(taps, slot, slots, begin, end, accumulate);
      slot += slots;
    }
  }

 private:
  static constexpr int64_t kMinChannels = 16;
  // Lines of 8 pixels bring at most 9 pairs for 16 rows, of which panels have room.
  static constexpr int64_t kMinPairedWidth = 8;

  // Channels of the pixels that a block's kernel row may read at once.
  static int64_t TileChannels(const DweightPlan& plan, const DenseTaps& taps) {
    const int64_t pieces = plan.block_rows / std::max<int64_t>(1, taps.out_width) + 2;
    const int64_t span = std::max<int64_t>(0, taps.kernel_width - 1) * taps.dilation[1] + 1;
    const int64_t pixels = plan.block_rows * taps.stride[1] + pieces * span * (kPairs ? 2 : 1);
    return DweightScratch::kTileElements / pixels;
  }

  // Slots of one kernel row.
  void AddSlots(const DenseTaps& taps, int64_t slot, int64_t slots, int64_t begin, int64_t end, bool accumulate) {
    const int64_t step = taps.dilation[1], span = (slots - 1) * step + 1;
    const int64_t first = slot % taps.kernel_width * step - taps.padding[1];
    const int64_t parts = CeilDiv(at_.channels, TileChannels(plan_, taps));
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t channel = at_.channels * part / parts;
      const int64_t channels = at_.channels * (part + 1) / parts - channel;
      int64_t depth = 0, b_row = 0, used = 0;
      // `rows` rows of the panels, alike in being whole pairs or not, whose first tap is pixel w of a line.
      const auto add = [&](int64_t line, int64_t w, int64_t rows, bool whole) {
        const int64_t pitch = kPairs ? 2 * taps.stride[1] : taps.stride[1];
        const int64_t pixels = (rows - 1) * pitch + span;
        for (int64_t i = 0; i < rows; ++i) {
          scratch_.a_rows[depth].source = used + i * pitch * channels;
          scratch_.b_rows[depth++] = int32_t(b_row++);
        }
        Read(taps, line, w, pixels, whole, channel, channels, scratch_.tile + used);
        used += pixels * channels;
      };
      const auto line = [&](int64_t row, int64_t stop, int64_t j, int64_t line) {
        const int64_t rows = stop - row, w = j * taps.stride[1] + first;
        if (!kPairs) return add(line, w, rows, true);
        if (rows > 1) add(line, w, rows / 2, true);
        if (rows % 2 > 0) add(line, w + (rows - 1) * taps.stride[1], 1, false);
      };
      const auto missing = [&](int64_t row, int64_t stop) { b_row += kPairs ? CeilDiv(stop - row, 2) : stop - row; };
      taps.Lines(slot / taps.kernel_width, begin, end, line, missing);

      const auto product = kPairs ? isa_.outer_pair_product : isa_.outer_product;
      float* const sums = SumsOf(slot) + channel * plan_.column_stride;
      if (step == 1 && channels == at_.channels) {
        Multiply(product, scratch_.tile, scratch_.a_rows, scratch_.b_rows, depth, slots * channels, sums, accumulate);
        continue;
      }
      for (int64_t i = 0; i < slots; ++i) {
        Multiply(product, scratch_.tile + i * step * channels, scratch_.a_rows, scratch_.b_rows, depth, channels,
                 sums + i * at_.channels * plan_.column_stride, accumulate);
      }
    }
  }

  // Some channels of a line's pixels from w on. In pairs, the high halves are the pixels `stride` further on, or zeros
  // where pairs are not whole.
  void Read(const DenseTaps& taps, int64_t line, int64_t w, int64_t pixels, bool whole, int64_t channel,
            int64_t channels, float* dst) {
    RowRun* const runs = scratch_.runs;
    const int64_t high = w + taps.stride[1];
    if (channels == taps.channels) {  // side by side in x too
      const auto cut = [&](int64_t at) {
        const int64_t begin = std::clamp<int64_t>(-at, 0, pixels);
        const int64_t end = std::clamp<int64_t>(taps.width - at, begin, pixels);
        return RowRun{line + at * channels, int32_t(begin * channels), int32_t(end * channels)};
      };
      runs[0] = cut(w);
      runs[1] = whole ? cut(high) : RowRun{};
      gather_(X(channel), runs, 1, int(pixels * channels), dst, 0);
      return;
    }
    const auto pixel = [&](int64_t at) {
      return at >= 0 && at < taps.width ? RowRun{line + at * taps.channels, 0, kWholeRun} : RowRun{};
    };
    for (int64_t first = 0; first < pixels; first += kPanelRows) {
      const int64_t count = std::min<int64_t>(kPanelRows, pixels - first);
      for (int64_t i = 0; i < count; ++i) {
        if (kPairs) {
          runs[2 * i] = pixel(w + first + i);
          runs[2 * i + 1] = whole ? pixel(high + first + i) : RowRun{};
        } else {
          runs[i] = pixel(w + first + i);
        }
      }
      gather_(X(channel), runs, count, int(channels), dst + first * channels, channels);
    }
  }

  void (*const gather_)(const void* base, const RowRun* runs, int64_t count, int width, float* dst, int64_t ldd);
};

}  // namespace knnconv::cpu
