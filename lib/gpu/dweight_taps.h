// How a weight gradient's thread blocks read taps: by arithmetic, from a table's columns, or from the slot order.
//
// A slot's taps are numbered by *positions*, batch entry by batch entry. A *view* is one operand group's taps. A *walk* is
// one thread's way through them in steps of a fixed size: Fetch reads the table, ahead of time so that its latency is
// hidden, and Source turns what was read into a row of x or kNoSource. Dense and column views have a position for every row
// of g, the same for all slots. A slot view has positions for one slot's taps alone, and its walk also gives the row of g.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

inline constexpr int64_t kNoSource = -1;

// Elements from an operand's start to the matrix of a group. Few instructions rather than fast: blocks call it rarely.
KNNCONV_DEVICE int64_t GroupOffset(const GroupShapes& shapes, GroupNumber at, const GroupStrides& strides) {
  int64_t offset = 0;
#pragma unroll 1
  for (int i = shapes.groups.rank - 1; i >= 0; --i) {
    const uint32_t groups = static_cast<uint32_t>(shapes.groups.size[i]);
    const uint32_t members = static_cast<uint32_t>(shapes.members.size[i]);
    offset += (at.group % groups + at.member % members) * strides.step[i];
    at.group /= groups;
    at.member /= members;
  }
  return offset;
}

// A way through [batch, length] in steps of a fixed size, which is divided once.
class BatchWalk {
 public:
  BatchWalk() = default;
  KNNCONV_DEVICE BatchWalk(int64_t position, uint32_t step, uint32_t length)
      : batch_(static_cast<int32_t>(position / length)),
        at_(static_cast<uint32_t>(position - int64_t{batch_} * length)),
        length_(length),
        batch_step_(static_cast<int32_t>(step / length)),
        at_step_(step % length) {}

  KNNCONV_DEVICE void Advance() { Move(batch_step_, at_step_); }
  KNNCONV_DEVICE void AdvanceByOne() { Move(0, 1); }

  KNNCONV_DEVICE int32_t batch() const { return batch_; }
  KNNCONV_DEVICE uint32_t at() const { return at_; }

 private:
  KNNCONV_DEVICE void Move(int32_t batches, uint32_t steps) {
    at_ += steps;
    batch_ += batches;
    if (at_ >= length_) {
      at_ -= length_;
      ++batch_;
    }
  }

  int32_t batch_;
  uint32_t at_, length_;
  int32_t batch_step_;
  uint32_t at_step_;
};

class DenseView {
 public:
  static constexpr bool kHasTable = false;
  static constexpr bool kBySlot = false;

  KNNCONV_DEVICE DenseView(const DenseTaps& taps, int64_t batch, const GroupShapes&, GroupNumber, int32_t)
      : taps_(taps), batch_(batch) {}

  KNNCONV_DEVICE int64_t positions() const { return batch_ * taps_.out_size[0] * taps_.out_size[1]; }
  KNNCONV_DEVICE bool has_uncounted_rows() const { return false; }
  KNNCONV_DEVICE bool IsCounted(int64_t) const { return true; }

  class Walk {
   public:
    Walk() = default;
    KNNCONV_DEVICE Walk(const DenseView& view, int32_t slot, int64_t position, uint32_t step)
        : lines_(position / view.taps_.out_size[1], step / view.taps_.out_size[1], view.taps_.out_size[0]),
          column_(static_cast<int32_t>(position % view.taps_.out_size[1])),
          column_step_(static_cast<int32_t>(step % view.taps_.out_size[1])),
          row_origin_(slot / view.taps_.kernel_width * view.taps_.dilation[0] -
                      view.taps_.padding[0]),
          column_origin_(slot % view.taps_.kernel_width * view.taps_.dilation[1] -
                         view.taps_.padding[1]) {}

    KNNCONV_DEVICE int32_t Fetch(const DenseView&) const { return 0; }

    KNNCONV_DEVICE int64_t Source(const DenseView& view, int32_t) const {
      const DenseTaps& taps = view.taps_;
      const int32_t h = static_cast<int32_t>(lines_.at()) * taps.stride[0] + row_origin_;
      const int32_t w = column_ * taps.stride[1] + column_origin_;
      const bool inside = static_cast<uint32_t>(h) < static_cast<uint32_t>(taps.in_size[0]) &&
                          static_cast<uint32_t>(w) < static_cast<uint32_t>(taps.in_size[1]);
      return inside ? (int64_t{lines_.batch()} * taps.in_size[0] + h) * taps.in_size[1] + w : kNoSource;
    }

    KNNCONV_DEVICE void Advance(const DenseView& view) {
      lines_.Advance();
      column_ += column_step_;
      if (column_ >= view.taps_.out_size[1]) {
        column_ -= view.taps_.out_size[1];
        lines_.AdvanceByOne();
      }
    }

   private:
    BatchWalk lines_;
    int32_t column_, column_step_;
    int32_t row_origin_, column_origin_;
  };

 private:
  DenseTaps taps_;
  int64_t batch_;
};

KNNCONV_DEVICE bool IsBelow(int32_t index, int32_t size) {
  return static_cast<uint32_t>(index) < static_cast<uint32_t>(size);
}

KNNCONV_DEVICE bool IsEmptyRow(const NeighborTable& table, int64_t row) {
#pragma unroll 1
  for (int64_t tap = row * table.neighbours; tap < (row + 1) * table.neighbours; ++tap) {
    const bool has_slot = table.slots == nullptr || IsBelow(table.slots[tap], table.slot_count);
    if (has_slot && IsBelow(table.indices[tap], table.sources)) return false;
  }
  return true;
}

class ColumnView {
 public:
  static constexpr bool kHasTable = true;
  static constexpr bool kBySlot = false;

  KNNCONV_DEVICE ColumnView(const ColumnTaps& taps, int64_t batch, const GroupShapes& shapes, GroupNumber at, int32_t)
      : table_(taps.table), batch_(batch) {
    table_.indices += GroupOffset(shapes, at, taps.index_groups);
  }

  KNNCONV_DEVICE int64_t positions() const { return batch_ * table_.outputs; }
  KNNCONV_DEVICE bool has_uncounted_rows() const { return table_.zero_empty_rows; }
  KNNCONV_DEVICE bool IsCounted(int64_t position) const {
    return !IsEmptyRow(table_, position % table_.outputs);
  }

  class Walk {
   public:
    Walk() = default;
    KNNCONV_DEVICE Walk(const ColumnView& view, int32_t slot, int64_t position, uint32_t step)
        : rows_(position, step, view.table_.outputs), column_(view.table_.indices + slot) {}

    KNNCONV_DEVICE int32_t Fetch(const ColumnView& view) const {
      return __ldg(column_ + int64_t{rows_.at()} * view.table_.neighbours);
    }
    KNNCONV_DEVICE int64_t Source(const ColumnView& view, int32_t index) const {
      return IsBelow(index, view.table_.sources) ? int64_t{rows_.batch()} * view.table_.sources + index : kNoSource;
    }
    KNNCONV_DEVICE void Advance(const ColumnView&) { rows_.Advance(); }

   private:
    BatchWalk rows_;
    const int32_t* column_;
  };

 private:
  NeighborTable table_;  // the group's
  int64_t batch_;
};

// One slot more than the weight has stands for the bias: its taps are all rows of g, and no row of x.
class SlotView {
 public:
  static constexpr bool kHasTable = true;
  static constexpr bool kBySlot = true;

  KNNCONV_DEVICE SlotView(const SlotTaps& taps, int64_t batch, const GroupShapes& shapes, GroupNumber at, int32_t slot)
      : table_(taps.table), batch_(batch), taps_(static_cast<uint32_t>(taps.table.outputs)) {
    table_.indices += GroupOffset(shapes, at, taps.index_groups);
    table_.slots += GroupOffset(shapes, at, taps.slot_groups);
    if (slot >= taps.table.slot_count) return;
    const int32_t* offset = taps.offsets + GroupOffset(shapes, at, taps.offset_groups) + int64_t{2} * slot;
    const int64_t begin = Entry(offset);
    taps_ = static_cast<uint32_t>(Entry(offset + 2) - begin);
    rows_ = taps.rows + GroupOffset(shapes, at, taps.row_groups) + begin;
    sources_ = taps.sources + GroupOffset(shapes, at, taps.source_groups) + begin;
  }

  KNNCONV_DEVICE int64_t positions() const { return batch_ * taps_; }
  KNNCONV_DEVICE bool has_uncounted_rows() const { return table_.zero_empty_rows && rows_ == nullptr; }
  KNNCONV_DEVICE bool IsCounted(int64_t position) const {
    return !IsEmptyRow(table_, position % table_.outputs);
  }

  class Walk {
   public:
    Walk() = default;
    KNNCONV_DEVICE Walk(const SlotView& view, int32_t, int64_t position, uint32_t step)
        : taps_(position, step, view.taps_) {}

    KNNCONV_DEVICE int32_t Fetch(const SlotView& view) const { return __ldg(view.sources_ + taps_.at()); }
    KNNCONV_DEVICE int64_t Source(const SlotView& view, int32_t index) const {
      return IsBelow(index, view.table_.sources) ? int64_t{taps_.batch()} * view.table_.sources + index : kNoSource;
    }
    KNNCONV_DEVICE int32_t FetchRow(const SlotView& view) const {
      return view.rows_ == nullptr ? static_cast<int32_t>(taps_.at()) : __ldg(view.rows_ + taps_.at());
    }
    KNNCONV_DEVICE int64_t Row(const SlotView& view, int32_t row) const {
      return int64_t{taps_.batch()} * view.table_.outputs + row;
    }
    KNNCONV_DEVICE void Advance(const SlotView&) { taps_.Advance(); }

   private:
    BatchWalk taps_;
  };

 private:
  KNNCONV_DEVICE static int64_t Entry(const int32_t* words) {
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(words[1])) << 32 |
                                static_cast<uint32_t>(words[0]));
  }

  NeighborTable table_;  // the group's
  const int32_t* rows_ = nullptr;
  const int32_t* sources_ = nullptr;
  int64_t batch_;
  uint32_t taps_;
};

template <typename Taps>
struct ViewOf;
template <>
struct ViewOf<DenseTaps> {
  using Type = DenseView;
};
template <>
struct ViewOf<ColumnTaps> {
  using Type = ColumnView;
};
template <>
struct ViewOf<SlotTaps> {
  using Type = SlotView;
};

}  // namespace knnconv::gpu
