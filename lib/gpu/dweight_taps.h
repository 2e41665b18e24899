// How a weight gradient's thread blocks read taps: by arithmetic, from a table's columns, or from the slot order.
//
// A slot's taps are numbered by *positions*, batch entry by batch entry. A *view* is one operand group's taps. A
// *walk* is one thread's way through them in steps of a fixed size: Fetch reads the table, ahead of time so that its
// latency is hidden, and Source turns what was read into a row of x. Dense and column views have a position for every
// row of g, the same for all slots. A slot view has positions for one slot's taps alone, and its walk also gives the
// row of g.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "gpu/vendor.h"

namespace knnconv::gpu {

// What a position reads of x: a row, counted over all batch entries, or nothing. Rows have 32 bits; offsets have 64.
struct Tap {
  uint32_t row;
  bool exists;
};

KNNCONV_DEVICE bool IsBelow(int32_t index, int32_t size) {
  return static_cast<uint32_t>(index) < static_cast<uint32_t>(size);
}

// Elements from an operand's start to the matrix of a group.
KNNCONV_DEVICE int64_t GroupOffset(const GroupShapes& shapes, const GroupNumber& at, const GroupStrides& strides) {
  return strides.Offset(shapes.groups, at.group) + strides.Offset(shapes.members, at.member);
}

// A way through [batch, length] in steps of a fixed size, which is divided once.
class BatchWalk {
 public:
  BatchWalk() = default;
  KNNCONV_DEVICE BatchWalk(int64_t position, uint32_t step, uint32_t length)
      : batch_(static_cast<uint32_t>(position / length)),
        at_(static_cast<uint32_t>(position - int64_t{batch_} * length)),
        length_(length),
        batch_step_(step / length),
        at_step_(step % length) {}

  KNNCONV_DEVICE void Advance() { Move(batch_step_, at_step_); }
  KNNCONV_DEVICE void Advance(uint32_t step) { Move(0, step); }  // at most `length`

  KNNCONV_DEVICE uint32_t batch() const { return batch_; }
  KNNCONV_DEVICE uint32_t at() const { return at_; }

 private:
  KNNCONV_DEVICE void Move(uint32_t batches, uint32_t steps) {
    const bool wraps = at_ + steps >= length_;
    at_ += wraps ? steps - length_ : steps;
    batch_ += wraps ? batches + 1 : batches;
  }

  uint32_t batch_, at_, length_, batch_step_, at_step_;
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

    struct Fetched {};
    KNNCONV_DEVICE Fetched Fetch(const DenseView&) const { return {}; }

    KNNCONV_DEVICE Tap Source(const DenseView& view, Fetched) const {
      const DenseTaps& taps = view.taps_;
      const int32_t h = static_cast<int32_t>(lines_.at()) * taps.stride[0] + row_origin_;
      const int32_t w = column_ * taps.stride[1] + column_origin_;
      const bool inside = IsBelow(h, taps.in_size[0]) & IsBelow(w, taps.in_size[1]);
      return {(lines_.batch() * taps.in_size[0] + h) * taps.in_size[1] + w, inside};
    }

    KNNCONV_DEVICE void Advance(const DenseView& view) {
      const int32_t width = view.taps_.out_size[1];
      const bool wraps = column_ + column_step_ >= width;
      column_ += wraps ? column_step_ - width : column_step_;
      lines_.Advance();
      lines_.Advance(wraps ? 1 : 0);
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

    struct Fetched {
      int32_t index;
      uint32_t batch;
    };
    KNNCONV_DEVICE Fetched Fetch(const ColumnView& view) const {
      return {ReadOnly(column_ + int64_t{rows_.at()} * view.table_.neighbours), rows_.batch()};
    }
    KNNCONV_DEVICE Tap Source(const ColumnView& view, Fetched fetched) const {
      return {fetched.batch * view.table_.sources + fetched.index, IsBelow(fetched.index, view.table_.sources)};
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

    struct Fetched {
      int32_t index;
      uint32_t batch;
    };
    KNNCONV_DEVICE Fetched Fetch(const SlotView& view) const {
      return {ReadOnly(view.sources_ + taps_.at()), taps_.batch()};
    }
    KNNCONV_DEVICE Tap Source(const SlotView& view, Fetched fetched) const {
      return {fetched.batch * view.table_.sources + fetched.index, IsBelow(fetched.index, view.table_.sources)};
    }
    KNNCONV_DEVICE Fetched FetchRow(const SlotView& view) const {
      const bool is_bias = view.rows_ == nullptr;
      return {is_bias ? static_cast<int32_t>(taps_.at()) : ReadOnly(view.rows_ + taps_.at()), taps_.batch()};
    }
    KNNCONV_DEVICE uint32_t Row(const SlotView& view, Fetched fetched) const {
      return fetched.batch * view.table_.outputs + fetched.index;
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
