#include "cpu/dense_tiles.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/task_plan.h"
#include "cpu/tile_block.h"

namespace knnconv::cpu {
namespace {

// Sizes [batch, H, W, channels] of an operand behind its group dimensions.
struct Image {
  int64_t batch, height, width, channels;
  Image(Dims dims, int groups)
      : batch(Product(dims, groups, dims.size() - 3)), height(dims[dims.size() - 3]), width(dims[dims.size() - 2]),
        channels(dims[dims.size() - 1]) {}
  int64_t elements() const { return batch * height * width * channels; }
};

// The rows of one block: for each, where its window starts in the source and where it goes in the output.
struct BlockRows {
  int64_t h[kBlockRows], w[kBlockRows];  // source pixel of a tap with offset 0
  int64_t pixel[kBlockRows];             // its index in the source
  int64_t out[kBlockRows];               // index of the output pixel

  void Fill(const WindowPlan& plan, const WindowClass& residue, const Image& source, const Image& output, Range rows) {
    int64_t q = rows.begin % residue.size[1], p = rows.begin / residue.size[1] % residue.size[0];
    int64_t b = rows.begin / residue.size[1] / residue.size[0];
    for (int64_t r = 0; r < rows.size(); ++r) {
      h[r] = p * plan.step[0];
      w[r] = q * plan.step[1];
      pixel[r] = (b * source.height + h[r]) * source.width + w[r];
      out[r] = (b * output.height + residue.residue[0] + p * plan.spacing[0]) * output.width + residue.residue[1] +
               q * plan.spacing[1];
      if (++q == residue.size[1]) {
        q = 0;
        if (++p == residue.size[0]) p = 0, ++b;
      }
    }
  }
};

}  // namespace

void RunDensePass(ffi::ThreadPool& pool, const DensePass& pass) {
  const int rank = pass.groups.rank();
  const Image source(pass.source.dimensions(), rank), output(pass.out.dimensions(), rank);
  const int64_t source_bytes = ByteWidth(pass.read) * source.channels;
  const Dtype out_dtype = ToDtype(pass.out.element_type());
  const int64_t out_bytes = ByteWidth(out_dtype) * output.channels;
  if (pass.out.element_count() == 0) return;

  const int64_t groups = pass.groups.count(), panels = pass.panels.count();
  const TaskPlan tasks = TaskPlan::Make(output.batch * output.height * output.width, groups, panels,
                                        pool.num_threads(), kBlockRows);
  const int64_t splits = CeilDiv(panels, tasks.panels);
  // Blocks of all classes, one after the other: first_block[c] is the number of blocks before class c.
  std::vector<int64_t> first_block{0};
  for (const WindowClass& residue : pass.plan.classes) {
    first_block.push_back(first_block.back() + CeilDiv(output.batch * residue.size[0] * residue.size[1], tasks.rows));
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
    const float* packed =
        pass.packed + pass.groups.IndexOf(group, pass.weight.dimensions()) * pass.panels.size();
    const float* bias =
        pass.bias ? pass.bias + pass.groups.IndexOf(group, pass.bias_dims) * output.channels : nullptr;

    const Range part = Range::Part(panels, split, splits);
    TileBlock tile(ActiveIsa(), pass.read, pass.panels, packed, part.begin, part.end, kBlockRows);
    tile.Begin(rows.size());
    tile.Select(rows.size());
    BlockRows at;
    at.Fill(pass.plan, residue, source, output, rows);
    const void* pointers[kBlockRows];
    for (const WindowTap& tap : residue.taps) {
      bool any = false;
      for (int64_t r = 0; r < rows.size(); ++r) {
        const bool inside = static_cast<uint64_t>(at.h[r] + tap.dh) < static_cast<uint64_t>(source.height) &&
                            static_cast<uint64_t>(at.w[r] + tap.dw) < static_cast<uint64_t>(source.width);
        pointers[r] = inside ? x + (at.pixel[r] + tap.dh * source.width + tap.dw) * source_bytes : nullptr;
        any |= inside;
      }
      if (any) tile.Add(tap.slot, pointers);
    }
    tile.Multiply();
    for (int64_t r = 0; r < rows.size(); ++r) tile.Store(r, bias, out_dtype, y + at.out[r] * out_bytes);
  });
}

}  // namespace knnconv::cpu
