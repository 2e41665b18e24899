#include "cpu/dense_tiles.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/dot_block.h"
#include "cpu/in_place_block.h"
#include "cpu/parallel.h"
#include "cpu/task_plan.h"
#include "cpu/tile_block.h"

namespace knnconv::cpu {
namespace {

// Sizes [batch, H, W, channels] of an operand behind its group dimensions; channels as they are read.
struct Image {
  int64_t batch, height, width, channels;
  Image(Dims dims, int groups, int64_t elements)
      : batch(Product(dims, groups, dims.size() - 3)), height(dims[dims.size() - 3]), width(dims[dims.size() - 2]),
        channels(elements) {}
  int64_t elements() const { return batch * height * width * channels; }
};

// Consecutive taps whose source pixels lie side by side: one stretch of memory where none of them is a hole.
struct TapRun {
  int64_t slot, dh, dw, length;
};

std::vector<TapRun> JoinTaps(const std::vector<WindowTap>& taps, int64_t max_length) {
  std::vector<TapRun> runs;
  for (const WindowTap& tap : taps) {
    if (!runs.empty()) {
      TapRun& last = runs.back();
      const bool beside = last.slot + last.length == tap.slot && last.dh == tap.dh && last.dw + last.length == tap.dw;
      if (beside && last.length < max_length) {
        ++last.length;
        continue;
      }
    }
    runs.push_back({tap.slot, tap.dh, tap.dw, 1});
  }
  return runs;
}

// The rows of one block: for each, where its window starts in the source and where it goes in the output.
struct BlockRows {
  int64_t h[kBlockRows], w[kBlockRows];  // source pixel of a tap with offset 0
  int64_t pixel[kBlockRows];             // its index in the source
  int64_t out[kBlockRows];               // index of the output pixel
  bool interior[kBlockRows];             // no tap is a hole
  int32_t edge[kBlockRows];              // the rows that are not interior
  int64_t count, edges;

  void Fill(const WindowPlan& plan, const WindowClass& residue, const Image& source, const Image& output, Range rows) {
    int64_t low_h = 0, high_h = 0, low_w = 0, high_w = 0;
    for (const WindowTap& tap : residue.taps) {
      low_h = std::min(low_h, tap.dh), high_h = std::max(high_h, tap.dh);
      low_w = std::min(low_w, tap.dw), high_w = std::max(high_w, tap.dw);
    }
    int64_t q = rows.begin % residue.size[1], p = rows.begin / residue.size[1] % residue.size[0];
    int64_t b = rows.begin / residue.size[1] / residue.size[0];
    count = rows.size();
    edges = 0;
    for (int64_t r = 0; r < count; ++r) {
      h[r] = p * plan.step[0];
      w[r] = q * plan.step[1];
      pixel[r] = (b * source.height + h[r]) * source.width + w[r];
      out[r] = (b * output.height + residue.residue[0] + p * plan.spacing[0]) * output.width + residue.residue[1] +
               q * plan.spacing[1];
      interior[r] = h[r] + low_h >= 0 && h[r] + high_h < source.height && w[r] + low_w >= 0 &&
                    w[r] + high_w < source.width;
      if (!interior[r]) edge[edges++] = static_cast<int32_t>(r);
      if (++q == residue.size[1]) {
        q = 0;
        if (++p == residue.size[0]) p = 0, ++b;
      }
    }
  }
};

// Whether pixel `at` + offset lies in [0, size).
bool Inside(int64_t at, int64_t offset, int64_t size) {
  return static_cast<uint64_t>(at + offset) < static_cast<uint64_t>(size);
}

// Adds all taps of a block. `x` is the source, `row_bytes` a pixel of it.
void AddTaps(const std::vector<TapRun>& runs, const BlockRows& at, const Image& source, Source read, const Isa& isa,
             const char* x, int64_t row_bytes, TileBlock& tile) {
  const void* pointers[kBlockRows];
  int32_t cut[kBlockRows];  // rows of whose run some taps are holes
  for (const TapRun& run : runs) {
    int64_t used = 0, cuts = 0;
    const int64_t offset = run.dh * source.width + run.dw;
    for (int64_t r = 0; r < at.count; ++r) {
      if (at.interior[r]) {
        pointers[r] = x + (at.pixel[r] + offset) * row_bytes;
        ++used;
        continue;
      }
      const bool row = Inside(at.h[r], run.dh, source.height), first = Inside(at.w[r], run.dw, source.width);
      const bool whole = first && Inside(at.w[r], run.dw + run.length - 1, source.width);
      pointers[r] = row && whole ? x + (at.pixel[r] + offset) * row_bytes : nullptr;
      used += row && whole;
      // Taps in the middle of a run may be inside where both its ends are not.
      if (row && !whole && run.length > 1) cut[cuts++] = static_cast<int32_t>(r);
    }
    if (used + cuts == 0) continue;
    tile.Add(run.slot, run.length, pointers, [&](int64_t begin, int64_t n, float* a) {
      for (int64_t i = 0; i < cuts; ++i) {
        const int64_t r = cut[i], w = at.w[r] + run.dw;
        const int64_t first = std::max(begin, std::max<int64_t>(0, -w) * source.channels);
        const int64_t last = std::min(begin + n, std::min(run.length, source.width - w) * source.channels);
        if (first >= last) continue;
        // The run's first pixel may lie before the image's row: the address is formed at an element that is inside.
        const void* inside = x + (at.pixel[r] + offset) * row_bytes + first * ByteWidth(read);
        isa.gather[static_cast<int>(read)](&inside, 1, 0, last - first, a + r * kTileDepthStride + first - begin);
      }
    });
  }
}

// The same for blocks that read rows where they lie. cut(row, data, taps) gives the row of a run of which only a range
// of taps are no holes, `data` being the first of them.
template <typename Sums, typename Cut>
void AddTaps(const std::vector<TapRun>& runs, const BlockRows& at, const Image& source, const char* x,
             int64_t row_bytes, Sums& sums, const Cut& cut) {
  // Addresses as numbers: before its holes are set, a tap's row may lie outside the source.
  uintptr_t first[kBlockRows];
  for (int64_t r = 0; r < at.count; ++r) first[r] = reinterpret_cast<uintptr_t>(x) + at.pixel[r] * row_bytes;
  for (const TapRun& run : runs) {
    // Taps of the run that lie inside.
    const auto inside = [&](int64_t r) {
      const int64_t w = at.w[r] + run.dw;
      if (!Inside(at.h[r], run.dh, source.height)) return Range{0, 0};
      return Range{std::max<int64_t>(0, -w), std::min(run.length, source.width - w)};
    };
    const auto any = [&](int64_t r) { return inside(r).size() > 0; };
    if (at.edges == at.count && std::none_of(at.edge, at.edge + at.edges, any)) continue;
    const void** pointers = sums.NextTap(run.slot);
    const int64_t offset = (run.dh * source.width + run.dw) * row_bytes;
    for (int64_t r = 0; r < at.count; ++r) pointers[r] = reinterpret_cast<const void*>(first[r] + offset);
    for (int64_t i = 0; i < at.edges; ++i) {
      const int64_t r = at.edge[i];
      const Range part = inside(r);
      if (part.size() <= 0) {
        pointers[r] = sums.zeros();
      } else if (part.size() < run.length) {
        const char* data = x + (at.pixel[r] + run.dh * source.width + run.dw + part.begin) * row_bytes;
        pointers[r] = cut(r, data, part);
      }
    }
  }
}

// The taps side by side that every run of a class consists of, or 0 where runs differ.
int64_t RunLength(const std::vector<TapRun>& runs) {
  const auto differs = [&](const TapRun& run) { return run.length != runs[0].length; };
  return runs.empty() || std::any_of(runs.begin(), runs.end(), differs) ? 0 : runs[0].length;
}

}  // namespace

void RunDensePass(ffi::ThreadPool& pool, const DensePass& pass) {
  const Isa& isa = ActiveIsa();
  const int rank = pass.groups.rank();
  const Image source(pass.source.dimensions(), rank, pass.panels.row_elements());
  const Image output(pass.out.dimensions(), rank, pass.panels.columns());
  const int64_t row_bytes = ByteWidth(pass.read) * source.channels;
  const Dtype out_dtype = ToDtype(pass.out.element_type());
  const int64_t out_bytes = ByteWidth(out_dtype) * output.channels;
  if (pass.out.element_count() == 0) return;

  const int64_t groups = pass.groups.count(), panels = pass.panels.count();
  const bool dot = pass.panels.dot(), long_taps = InPlaceBlock::Suits(pass.read, pass.panels, 1);
  const TaskPlan tasks = TaskPlan::Make(output.batch * output.height * output.width, groups, panels,
                                        pool.num_threads(), dot ? kDotBlockRows : kBlockRows);
  const int64_t splits = CeilDiv(panels, tasks.panels);
  // Blocks of all classes, one after the other: first_block[c] is the number of blocks before class c.
  std::vector<int64_t> first_block{0};
  std::vector<std::vector<TapRun>> runs;
  const bool single = dot || long_taps || pass.panels.padded();
  const int64_t joined = single ? 1 : std::max<int64_t>(1, kTileDepth / std::max<int64_t>(1, source.channels));
  for (const WindowClass& residue : pass.plan.classes) {
    first_block.push_back(first_block.back() + CeilDiv(output.batch * residue.size[0] * residue.size[1], tasks.rows));
    runs.push_back(JoinTaps(residue.taps, joined));
  }
  const int64_t blocks = first_block.back();

  ParallelFor(pool, groups * blocks * splits, [&](int64_t task) {
    const int64_t block = task % blocks, split = task / blocks % splits, group = task / blocks / splits;
    const size_t index = std::upper_bound(first_block.begin(), first_block.end(), block) - first_block.begin() - 1;
    const WindowClass& residue = pass.plan.classes[index];
    const Range rows = Range::Part(output.batch * residue.size[0] * residue.size[1], block - first_block[index],
                                   first_block[index + 1] - first_block[index]);
    const char* x = GroupData(pass.source, pass.groups, group, source.elements(), ByteWidth(pass.read));
    char* y = static_cast<char*>(pass.out.untyped_data()) + group * output.elements() * ByteWidth(out_dtype);
    const float* packed = pass.packed + pass.groups.IndexOf(group, pass.weight.dimensions()) * pass.panels.size();
    const float* bias =
        pass.bias ? pass.bias + pass.groups.IndexOf(group, pass.bias_dims) * output.channels : nullptr;

    BlockRows at;
    at.Fill(pass.plan, residue, source, output, rows);
    char* out[kBlockRows];
    for (int64_t r = 0; r < at.count; ++r) out[r] = y + at.out[r] * out_bytes;
    if (dot) {
      DotBlock dots(isa, pass.read, pass.panels, packed);
      dots.Select(0, at.count);
      AddTaps(runs[index], at, source, x, row_bytes, dots, [](int64_t, const char*, Range) { return nullptr; });
      dots.Multiply();
      dots.Store(0, at.count, bias, out_dtype, out);
      return;
    }
    const Range part = Range::Part(panels, split, splits);
    const int64_t run = RunLength(runs[index]);
    if (InPlaceBlock::Suits(pass.read, pass.panels, run)) {
      InPlaceBlock rows(isa, pass.panels, packed, part.begin, part.end, run);
      rows.Begin(at.count);
      AddTaps(runs[index], at, source, x, row_bytes, rows, [&](int64_t r, const char* data, Range taps) {
        float* row = rows.Room(r);
        std::fill(row, row + run * source.channels, 0.0f);
        std::memcpy(row + taps.begin * source.channels, data, taps.size() * row_bytes);
        return row;
      });
      rows.Multiply();
      rows.Store(0, at.count, bias, out_dtype, out);
    } else {
      TileBlock tile(isa, pass.read, pass.panels, packed, part.begin, part.end, kBlockRows);
      tile.Begin(at.count);
      tile.Select(at.count);
      AddTaps(runs[index], at, source, pass.read, isa, x, row_bytes, tile);
      tile.Multiply();
      tile.Store(0, at.count, bias, out_dtype, out);
    }
  });
}

}  // namespace knnconv::cpu
