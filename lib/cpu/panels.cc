#include "cpu/panels.h"

#include <cstring>

namespace knnconv::cpu {
namespace {

// The two matrices of one slot: weights are [C, O]; a panel has the reduced channels as rows in tile form and as columns
// in dot form. So the form and the pass decide whether rows are copied or the matrix is transposed.
struct SlotPacker {
  const Isa& isa;
  const Panels& panels;
  Dtype dtype;
  Reduce reduce;

  const char* Row(const char* slot, int64_t row, int64_t columns) const {
    return slot + row * columns * ByteWidth(dtype);
  }
  void LoadPart(const char* row, int64_t begin, int64_t n, float* dst) const {
    isa.load[static_cast<int>(dtype)](row + begin * ByteWidth(dtype), n, dst);
  }

  // dst[column][d], d contiguous: dot form.
  void Dot(const char* slot, float* dst) const {
    const int64_t depth = panels.depth(), columns = panels.columns(), steps = panels.steps();
    for (int64_t n = 0; n < columns; ++n) {
      float* out = dst + n * steps;
      if (reduce == Reduce::kOutput) {
        LoadPart(Row(slot, n, depth), 0, depth, out);
      } else {
        for (int64_t d = 0; d < depth; ++d) LoadPart(Row(slot, d, columns), n, 1, out + d);
      }
      std::fill(out + depth, out + steps, 0.0f);
    }
  }

  // dst[d][column], `width` columns contiguous: tile form. `begin` is the panel's first column.
  void Tile(const char* slot, int64_t begin, int width, float* dst) const {
    const int64_t depth = panels.depth(), columns = panels.columns(), used = std::min<int64_t>(width, columns - begin);
    if (reduce == Reduce::kInput && panels.pairs()) {
      for (int64_t d = 0; d < depth; ++d, dst += width) {
        const char* low = Row(slot, 2 * d, columns) + begin * 2;
        const char* high = Row(slot, 2 * d + 1, columns) + begin * 2;
        uint16_t pairs[kPanelColumns][2] = {};
        for (int64_t n = 0; n < used; ++n) {
          std::memcpy(&pairs[n][0], low + 2 * n, 2);
          std::memcpy(&pairs[n][1], high + 2 * n, 2);
        }
        std::memcpy(dst, pairs, width * sizeof(float));
      }
      return;
    }
    if (reduce == Reduce::kInput) {
      for (int64_t d = 0; d < depth; ++d, dst += width) {
        LoadPart(Row(slot, d, columns), begin, used, dst);
        std::fill(dst + used, dst + width, 0.0f);
      }
      return;
    }
    constexpr int64_t kStripe = 64;
    float stripe[kPanelColumns][kStripe];
    for (int64_t n = used; n < width; ++n) std::fill(stripe[n], stripe[n] + kStripe, 0.0f);
    for (int64_t first = 0; first < depth; first += kStripe) {
      const int64_t length = std::min(kStripe, depth - first);
      for (int64_t n = 0; n < used; ++n) LoadPart(Row(slot, begin + n, depth), first, length, stripe[n]);
      for (int64_t d = 0; d < length; ++d, dst += width) {
        for (int n = 0; n < width; ++n) dst[n] = stripe[n][d];
      }
    }
  }
};

}  // namespace

void PackWeights(ffi::ThreadPool& pool, const Isa& isa, const void* weight, Dtype dtype, int64_t groups, Reduce reduce,
                 const Panels& panels, float* packed) {
  // Pairs along a row are moved as if they were floats.
  const Dtype moved = panels.pairs() && reduce == Reduce::kOutput ? Dtype::kF32 : dtype;
  const SlotPacker packer{isa, panels, moved, reduce};
  const int64_t slots = panels.slots(), count = panels.count();
  const int64_t slot_bytes = panels.depth() * panels.columns() * (panels.pairs() ? 4 : ByteWidth(dtype));
  if (slot_bytes == 0) return;
  auto pack_slot = [&](int64_t index) {  // over [group][slot][panel]
    const int64_t panel = index % count, slot = index / count % slots, group = index / count / slots;
    const char* src = static_cast<const char*>(weight) + (group * slots + slot) * slot_bytes;
    float* base = packed + group * panels.size();
    float* dst = const_cast<float*>(panels.Address(base, panel, panels.Position(slot, 0)));
    if (panels.dot()) {
      packer.Dot(src, dst);
    } else {
      packer.Tile(src, panel * kPanelColumns, panels.PanelColumns(panel), dst);
    }
  };
  // Tasks of some 64 KB, so that small weights do not pay for the hand-over to other threads.
  const int64_t items = groups * slots * count;
  const int64_t per_task = std::max<int64_t>(1, (int64_t{1} << 14) * items / std::max<int64_t>(1, groups * panels.size()));
  ParallelFor(pool, CeilDiv(items, per_task), [&](int64_t task) {
    for (int64_t i = task * per_task; i < std::min(items, (task + 1) * per_task); ++i) pack_slot(i);
  });
}

}  // namespace knnconv::cpu
