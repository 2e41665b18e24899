// The taps of a dense window, by arithmetic. Rows are output pixels [b, i, j].
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/operands.h"

namespace knnconv::cpu {

struct DenseTaps {
  static constexpr bool kHasRuns = true;

  int64_t height, width, channels;
  int64_t out_height, out_width;
  int64_t kernel_width;
  int64_t stride[2], padding[2], dilation[2];

  void Start(int64_t) {}

  // Calls piece(first row, end row, first pixel's j) for each line's part of output pixels [begin, end).
  template <typename Piece>
  void Pieces(int64_t begin, int64_t end, const Piece& piece) const {
    for (int64_t row = begin; row < end;) {
      const int64_t j = row % out_width, stop = std::min(end, row + out_width - j);
      piece(row, stop, j);
      row = stop;
    }
  }

  // Calls line(first row, end row, first pixel's j, element offset of x's line) for those parts whose line of x exists;
  // missing(first row, end row) for the others.
  template <typename Line, typename Missing>
  void Lines(int64_t fh, int64_t begin, int64_t end, const Line& line, const Missing& missing) const {
    Pieces(begin, end, [&](int64_t row, int64_t stop, int64_t j) {
      const int64_t out_line = row / out_width;
      const int64_t h = out_line % out_height * stride[0] + fh * dilation[0] - padding[0];
      if (h >= 0 && h < height) {
        line(row, stop, j, (out_line / out_height * height + h) * width * channels);
      } else {
        missing(row, stop);
      }
    });
  }

  // Pixels j with 0 <= j * stride + Offset(slot) < width.
  int64_t Offset(int64_t slot) const { return slot % kernel_width * dilation[1] - padding[1]; }
  int64_t FirstInside(int64_t offset) const { return offset >= 0 ? 0 : CeilDiv(-offset, stride[1]); }
  int64_t EndInside(int64_t offset) const {
    return offset >= width ? 0 : std::min(out_width, CeilDiv(width - offset, stride[1]));
  }

  // Taps of a line of output pixels, over all slots of a kernel row, that lie inside.
  int64_t InsideColumns() const {
    int64_t count = 0;
    for (int64_t fw = 0; fw < kernel_width; ++fw) {
      count += std::max<int64_t>(0, EndInside(Offset(fw)) - FirstInside(Offset(fw)));
    }
    return count;
  }

  template <typename Push>
  void Visit(int64_t slot, int64_t begin, int64_t end, const Push& push) const {
    const int64_t offset = Offset(slot), first = FirstInside(offset), last = EndInside(offset);
    const auto line = [&](int64_t row, int64_t stop, int64_t j, int64_t source) {
      const int64_t j_end = std::min(last, j + stop - row);
      for (int64_t at = std::max(first, j); at < j_end; ++at) {
        push(source + (at * stride[1] + offset) * channels, row + at - j - begin);
      }
    };
    Lines(slot / kernel_width, begin, end, line, [](int64_t, int64_t) {});
  }

  void Runs(int64_t slot, int64_t begin, int64_t end, RowRun* runs) const {
    std::fill(runs, runs + (end - begin), RowRun{});
    Visit(slot, begin, end, [&](int64_t source, int64_t row) { runs[row] = {source, 0, int32_t(channels)}; });
  }

  int CountedRows(int64_t begin, int64_t end, int32_t* rows) const {
    for (int32_t row = 0; row < end - begin; ++row) rows[row] = row;
    return int(end - begin);
  }
};

}  // namespace knnconv::cpu
