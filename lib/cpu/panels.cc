#include "cpu/panels.h"

#include <cstring>

namespace knnconv::cpu {
namespace {

// Weights of a slot are [C, O]; a panel has the reduced channels as rows in tile form and as columns in dot form.
// So the form and the pass decide whether rows are copied or the matrix is transposed.
struct SlotPacker {
  const Isa& isa;
  const Panels& panels;
  Dtype dtype;

  // Elements of the weight along the reduced channels.
  int64_t channels() const { return panels.pairs() ? 2 * panels.depth() - panels.padded() : panels.depth(); }

  const char* Row(const char* slot, int64_t row, int64_t columns) const {
    return slot + row * columns * ByteWidth(dtype);
  }
  void LoadPart(const char* row, int64_t begin, int64_t n, float* dst) const {
    isa.load[static_cast<int>(dtype)](row + begin * ByteWidth(dtype), n, dst);
  }

  // Dot form, dst[column][d]: rows of the weight where O is reduced, columns where C is.
  void Dot(const char* slot, Reduce reduce, float* dst) const {
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

  // Tile form of k-step d where C is reduced: one row of the weight, or two as pairs, cut into panels. Reads run along
  // the weight, which is faster than to fill one panel after the other.
  void CutRow(const char* slot, int64_t d, float* packed, int64_t position) const {
    const int64_t columns = panels.columns();
    for (int64_t panel = 0; panel < panels.count(); ++panel) {
      float* dst = const_cast<float*>(panels.Address(packed, panel, position));
      const int64_t begin = panel * kPanelColumns, width = panels.PanelColumns(panel);
      const int64_t used = std::min(width, columns - begin);
      if (panels.pairs()) {
        const bool whole = 2 * d + 1 < channels();
        const char* low = Row(slot, 2 * d, columns) + begin * 2;
        const char* high = whole ? low + columns * 2 : low;
        uint16_t pairs[kPanelColumns][2] = {};
        for (int64_t n = 0; n < used; ++n) {
          std::memcpy(&pairs[n][0], low + 2 * n, 2);
          std::memcpy(&pairs[n][1], high + 2 * n, 2);
          pairs[n][1] = whole ? pairs[n][1] : 0;
        }
        std::memcpy(dst, pairs, width * sizeof(float));
      } else {
        LoadPart(Row(slot, d, columns), begin, used, dst);
        std::fill(dst + used, dst + width, 0.0f);
      }
    }
  }

  // Tile form of k-steps [first, first + length) of a panel where O is reduced: a transposed block of the weight.
  static constexpr int64_t kStripe = 64;
  void Transpose(const char* slot, int64_t panel, int64_t first, int64_t length, float* dst) const {
    const int64_t begin = panel * kPanelColumns, width = panels.PanelColumns(panel);
    const int64_t used = std::min(width, panels.columns() - begin);
    float stripe[kPanelColumns][kStripe];
    for (int64_t n = used; n < width; ++n) std::fill(stripe[n], stripe[n] + kStripe, 0.0f);
    for (int64_t n = 0; n < used; ++n) {
      const char* row = Row(slot, begin + n, channels());
      if (panels.pairs()) {
        stripe[n][length - 1] = 0;
        std::memcpy(stripe[n], row + first * 4, std::min(length * 4, channels() * 2 - first * 4));
      } else {
        LoadPart(row, first, length, stripe[n]);
      }
    }
    for (int64_t d = 0; d < length; ++d, dst += width) {
      for (int64_t n = 0; n < width; ++n) dst[n] = stripe[n][d];
    }
  }

  void Pack(const char* slot_data, int64_t slot, Reduce reduce, int64_t first, int64_t length, float* packed) const {
    if (panels.dot()) {
      if (first == 0) Dot(slot_data, reduce, const_cast<float*>(panels.Address(packed, 0, panels.Position(slot, 0))));
    } else if (reduce == Reduce::kInput) {
      for (int64_t d = first; d < first + length; ++d) CutRow(slot_data, d, packed, panels.Position(slot, d));
    } else {
      for (int64_t panel = 0; panel < panels.count(); ++panel) {
        float* dst = const_cast<float*>(panels.Address(packed, panel, panels.Position(slot, first)));
        Transpose(slot_data, panel, first, length, dst);
      }
    }
  }
};

}  // namespace

void PackWeights(ffi::ThreadPool& pool, const Isa& isa, const void* weight, Dtype dtype, int64_t groups, Reduce reduce,
                 const Panels& panels, float* packed) {
  const SlotPacker packer{isa, panels, dtype};
  const int64_t slots = panels.slots(), depth = panels.depth();
  const int64_t slot_bytes = packer.channels() * panels.columns() * ByteWidth(dtype);
  if (slot_bytes == 0) return;
  const int64_t stripes = CeilDiv(depth, SlotPacker::kStripe), items = groups * slots * stripes;
  // Tasks of some 64 KB, so that small weights do not pay for the hand-over to other threads.
  const int64_t all = std::max<int64_t>(1, groups * panels.size());
  const int64_t per_task = std::max<int64_t>(1, (int64_t{1} << 14) * items / all);
  ParallelFor(pool, CeilDiv(items, per_task), [&](int64_t task) {
    for (int64_t i = task * per_task; i < std::min(items, (task + 1) * per_task); ++i) {
      const int64_t first = i % stripes * SlotPacker::kStripe, slot = i / stripes % slots, group = i / stripes / slots;
      packer.Pack(static_cast<const char*>(weight) + (group * slots + slot) * slot_bytes, slot, reduce, first,
                  std::min(SlotPacker::kStripe, depth - first), packed + group * panels.size());
    }
  });
}

}  // namespace knnconv::cpu
