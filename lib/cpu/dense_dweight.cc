// dw[fh, fw, c, o] = sum over b, i, j:  x[b, i*stride + fh*dilation - padding, ..., c] * g[b, i, j, o]
#include "common/layout.h"
#include "cpu/dweight.h"
#include "cpu/handlers.h"

namespace knnconv::cpu {
namespace {

// The taps of a dense window, by arithmetic. Rows are output pixels [b, i, j].
struct DenseTaps {
  int64_t height, width, channels;
  int64_t out_height, out_width;
  int64_t kernel_width;
  int64_t stride[2], padding[2], dilation[2];

  void Start(int64_t) {}

  // Calls line(first row, end row, first pixel's j, element offset of x's line) for each line of output pixels in
  // [begin, end) whose line of x exists; missing(first row, end row) for the others.
  template <typename Line, typename Missing>
  void Lines(int64_t fh, int64_t begin, int64_t end, const Line& line, const Missing& missing) const {
    for (int64_t row = begin; row < end;) {
      const int64_t out_line = row / out_width, j = row % out_width;
      const int64_t stop = std::min(end, row + out_width - j);
      const int64_t h = out_line % out_height * stride[0] + fh * dilation[0] - padding[0];
      if (h >= 0 && h < height) {
        line(row, stop, j, (out_line / out_height * height + h) * width * channels);
      } else {
        missing(row, stop);
      }
      row = stop;
    }
  }

  template <typename Push>
  void Visit(int64_t slot, int64_t begin, int64_t end, const Push& push) const {
    const int64_t offset = slot % kernel_width * dilation[1] - padding[1];
    // Pixels j with 0 <= j * stride + offset < width.
    const int64_t first = offset >= 0 ? 0 : CeilDiv(-offset, stride[1]);
    const int64_t last = offset >= width ? 0 : CeilDiv(width - offset, stride[1]);
    const auto line = [&](int64_t row, int64_t stop, int64_t j, int64_t source) {
      const int64_t j_end = std::min(last, j + stop - row);
      for (int64_t at = std::max(first, j); at < j_end; ++at) {
        push(source + (at * stride[1] + offset) * channels, row + at - j - begin);
      }
    };
    Lines(slot / kernel_width, begin, end, line, [](int64_t, int64_t) {});
  }

  int64_t Stackable(int64_t slot, int64_t slots) const {
    if (channels > kStackedChannels) return 0;
    return dilation[1] == 1 ? std::min(slots, kernel_width - slot % kernel_width) : 1;
  }

  // Neighbouring slots of a kernel row read one run of x, cut where the image ends.
  void Stack(int64_t slot, int64_t slots, int64_t begin, int64_t end, RowRun* runs) const {
    const int64_t offset = slot % kernel_width * dilation[1] - padding[1];
    const auto line = [&](int64_t row, int64_t stop, int64_t j, int64_t source) {
      for (; row < stop; ++row, ++j) {
        const int64_t w = j * stride[1] + offset;
        int64_t low = 0, high = slots;
        if (w < 0 || w + slots > width) {
          low = std::clamp<int64_t>(-w, 0, slots);
          high = std::clamp<int64_t>(width - w, low, slots);
        }
        runs[row - begin] = {source + w * channels, int32_t(low * channels), int32_t(high * channels)};
      }
    };
    const auto missing = [&](int64_t row, int64_t stop) {
      std::fill(runs + (row - begin), runs + (stop - begin), RowRun{});
    };
    Lines(slot / kernel_width, begin, end, line, missing);
  }

  int CountedRows(int64_t begin, int64_t end, int32_t* rows) const {
    for (int32_t row = 0; row < end - begin; ++row) rows[row] = row;
    return int(end - begin);
  }
};

ffi::Error RunDenseDweight(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::Result<ffi::AnyBuffer> dw,
                           ffi::Result<ffi::AnyBuffer> db, ffi::Result<ffi::AnyBuffer> partials,
                           ffi::Span<const int64_t> stride, ffi::Span<const int64_t> padding,
                           ffi::Span<const int64_t> dilation) {
  const Dims xd = x.dimensions(), gd = g.dimensions(), wd = dw->dimensions();
  KNNCONV_CHECK(wd.size() >= 4);
  KNNCONV_CHECK(stride.size() == 2 && padding.size() == 2 && dilation.size() == 2);
  KNNCONV_CHECK(stride[0] > 0 && stride[1] > 0 && dilation[0] > 0 && dilation[1] > 0);
  Groups groups;
  KNNCONV_RETURN_IF_ERROR(Groups::Make(int(wd.size()) - 4, {xd, gd, wd}, &groups));
  KNNCONV_RETURN_IF_ERROR(DweightCall::Check(groups, 2, 2, x, g, *dw, *db, *partials));
  const DweightCall call(groups, 2, x, g, *dw, *db, *partials);

  const size_t pixels = xd.size() - 3;
  DenseTaps taps{xd[pixels], xd[pixels + 1], call.channels, gd[pixels], gd[pixels + 1], wd[wd.size() - 3], {}, {}, {}};
  std::copy_n(stride.begin(), 2, taps.stride);
  std::copy_n(padding.begin(), 2, taps.padding);
  std::copy_n(dilation.begin(), 2, taps.dilation);
  const int64_t rows = call.batch * taps.out_height * taps.out_width;
  const auto plan = DweightPlan::Make(call, rows, 1);
  RunDweight(pool, plan, call, [&](int64_t) { return taps; });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DenseDweight, RunDenseDweight,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<ffi::Span<const int64_t>>("stride")
                                  .Attr<ffi::Span<const int64_t>>("padding")
                                  .Attr<ffi::Span<const int64_t>>("dilation"));

}  // namespace knnconv::cpu
