// The warp of a weight gradient's thread block that issues copies: where the boxes of each step lie, by a table or by
// arithmetic.
#pragma once

#include <cstdint>

#include "hopper/dweight_task.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// Coordinates of the pixel where a step of a dense convolution begins, in g and, for a tap without offset, in x.
class PixelWalk {
 public:
  KNNCONV_DEVICE PixelWalk(const DweightTask& task, int32_t position)
      : taps_(task.dense), pitch_(task.pitch) {
    const int32_t line = position / pitch_;
    w_ = position - line * pitch_;
    image_ = line / taps_.out_size[0];
    h_ = line - image_ * taps_.out_size[0];
  }

  KNNCONV_DEVICE void Advance() {
    w_ += kStep % pitch_;
    h_ += kStep / pitch_;
    if (w_ >= pitch_) {
      w_ -= pitch_;
      ++h_;
    }
    image_ += h_ / taps_.out_size[0];
    h_ %= taps_.out_size[0];
  }

  KNNCONV_DEVICE int g_w() const { return w_; }
  KNNCONV_DEVICE int g_h() const { return h_; }
  KNNCONV_DEVICE int x_w() const { return w_ * taps_.stride[1] - taps_.padding[1]; }
  KNNCONV_DEVICE int x_h() const { return h_ * taps_.stride[0] - taps_.padding[0]; }
  KNNCONV_DEVICE int image() const { return image_; }

 private:
  const gpu::DenseTaps& taps_;
  const int32_t pitch_;
  int32_t w_, h_, image_;
};

// One thread of a warp, the same each time. Unlike a comparison of lanes, the compiler knows that it is one, so that
// copies under it take their operands from uniform registers without a loop over lanes.
KNNCONV_DEVICE bool IsElected() {
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
}

// The warp that issues copies. Lanes below kRowBoxes know where a box of x comes from, the next one where g's do; the
// copies are issued one after the other.
template <typename Tile>
class DweightProducer {
 public:
  KNNCONV_DEVICE DweightProducer(const DweightTask& task, const CUtensorMap* x, const CUtensorMap* g)
      : task_(task), x_(x), g_(g), lane_(threadIdx.x % 32), walk_(task.schedule, blockIdx.x) {}

  // Finds the first segment and begins to read its nodes, which takes as long as barriers take to be ready.
  KNNCONV_DEVICE void Begin() {
    if (walk_.exists()) Enter();
  }

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    while (segment_.steps > 0) {
      if (IsDense()) {
        RunDense(ring);
      } else {
        RunTable(ring);
      }
      segment_.steps = 0;
      if (walk_.exists()) Enter();
    }
  }

 private:
  KNNCONV_DEVICE bool IsDense() const { return Tile::kHasStrips || task_.kind == TapsKind::kDense; }

  KNNCONV_DEVICE void Enter() {
    segment_ = walk_.segment();
    walk_.Advance(segment_.steps);
    const int first_box = segment_.row_tile * Tile::kRowBoxes;
    first_column_ = segment_.column_tile * Tile::kColumns;
    row_boxes_ = min(Tile::kRowBoxes, task_.boxes - first_box);
    column_boxes_ = min(Tile::kColumnBoxes, (task_.columns - first_column_ + kBox - 1) / kBox);
    first_channel_ = first_box % task_.channel_boxes * kBox;
    slot_ = (first_box + lane_) / task_.channel_boxes;
    step_bytes_ = row_boxes_ * kBoxBytes + column_boxes_ * kBoxBytes;
    if constexpr (Tile::kHasStrips) {
      step_bytes_ += row_boxes_ * (Tile::kTaps - 1) * task_.dense.dilation[1] * kLineBytes;
    }
    if (!IsDense()) EnterTable();
  }

  // Where this lane's nodes stand: in a column of the table or in the slot order; else they are the rows themselves.
  KNNCONV_DEVICE void EnterTable() {
    const bool is_source = lane_ < row_boxes_;
    nodes_ = nullptr;
    pitch_ = 1;
    if (task_.kind == TapsKind::kColumns && is_source) {
      nodes_ = task_.table.indices + slot_;
      pitch_ = task_.table.neighbours;
    } else if (task_.kind == TapsKind::kSlots) {
      nodes_ = (is_source ? task_.sources : task_.rows) + task_.schedule.Offset(segment_.list);
    }
    node_ = NodeOf(DweightRows(task_.schedule, segment_).row());
  }

  KNNCONV_DEVICE int32_t NodeOf(int32_t row) const {
    if (lane_ >= row_boxes_ && lane_ != Tile::kRowBoxes) return -1;
    return nodes_ == nullptr ? row : gpu::ReadOnly(nodes_ + int64_t{row} * pitch_);
  }

  // Waits until the stage is free, and issues a step's copies: of x's box b by load_x(to, b, channel), of g's by
  // load_g(to, column).
  template <typename LoadX, typename LoadG>
  KNNCONV_DEVICE void Step(const DweightRing<Tile>& ring, const LoadX& load_x, const LoadG& load_g) {
    ring.empty[place_.stage].Wait(place_.parity ^ 1);
    if (IsElected()) ring.full[place_.stage].ArriveExpecting(step_bytes_);
    int channel = first_channel_;
#pragma unroll
    for (int box = 0; box < Tile::kRowBoxes; ++box) {
      if (box < row_boxes_) load_x(ring.RowBox(place_.stage, box), box, channel);
      channel = channel == (task_.channel_boxes - 1) * kBox ? 0 : channel + kBox;
    }
#pragma unroll
    for (int box = 0; box < Tile::kColumnBoxes; ++box) {
      if (box < column_boxes_) load_g(ring.ColumnBox(place_.stage, box), first_column_ + box * kBox);
    }
    place_.Advance();
  }

  KNNCONV_DEVICE void RunDense(const DweightRing<Tile>& ring) {
    const DweightSegment segment = segment_;
    const gpu::DenseTaps& taps = task_.dense;
    constexpr int kShift = 16;
    const int offset_h = (Tile::kHasStrips ? slot_ : slot_ / taps.kernel_width) * taps.dilation[0];
    const int offset_w = Tile::kHasStrips ? 0 : slot_ % taps.kernel_width * taps.dilation[1];
    const int offsets = offset_h << kShift | offset_w;
    const int first_image = segment.list * task_.own_images, matrix = task_.own_g ? segment.list : 0;
    int position = segment.first * kStep;
    PixelWalk pixel(task_, position);
    for (int left = segment.steps; left > 0; --left) {
      Barrier* const full = &ring.full[place_.stage];
      Step(
          ring,
          [&](unsigned char* to, int box, int channel) {
            const int offset = __shfl_sync(0xffffffff, offsets, box);
            if (IsElected()) {
              LoadPixels(to, x_, full, channel, pixel.x_w(), pixel.x_h(), first_image + pixel.image(),
                         offset & ((1 << kShift) - 1), offset >> kShift);
            }
          },
          [&](unsigned char* to, int column) {
            if (!IsElected()) return;
            if constexpr (Tile::kHasStrips) {
              LoadPixels(to, g_, full, column, pixel.g_w(), pixel.g_h(), pixel.image(), 0, 0);
            } else {
              LoadBox(to, g_, full, column, position, matrix);
            }
          });
      pixel.Advance();
      position += kStep;
    }
  }

  KNNCONV_DEVICE void RunTable(const DweightRing<Tile>& ring) {
    const int32_t size = lane_ < row_boxes_ ? task_.table.sources : task_.table.outputs;
    DweightRows rows(task_.schedule, segment_);
    for (int left = segment_.steps; left > 0; --left) {
      const int first = rows.part() * kStep;
      const int32_t box_node = static_cast<uint32_t>(node_) < static_cast<uint32_t>(size) ? node_ : -1;
      rows.Advance();
      if (left > 1) node_ = NodeOf(rows.row());  // for the next step, while this one waits for its stage
      Barrier* const full = &ring.full[place_.stage];
      Step(
          ring,
          [&](unsigned char* to, int box, int channel) {
            const int at = __shfl_sync(0xffffffff, box_node, box);
            if (IsElected()) LoadBox(to, x_, full, channel, at, first);
          },
          [&](unsigned char* to, int column) {
            const int at = __shfl_sync(0xffffffff, box_node, Tile::kRowBoxes);
            if (IsElected()) LoadBox(to, g_, full, column, at, first);
          });
    }
  }

  const DweightTask& task_;
  const CUtensorMap *const x_, *const g_;
  const int lane_;
  DweightWalk walk_;
  DweightSegment segment_ = {};  // that is under way; of no steps behind the last one
  typename DweightRing<Tile>::Place place_;

  int row_boxes_ = 0, column_boxes_ = 0;  // that exist
  int first_channel_ = 0, first_column_ = 0;
  int slot_ = 0;  // of this lane's box; the kernel's row of its strip
  int step_bytes_ = 0;

  // Of tables: where this lane's nodes stand, from one row to the next, and the next step's.
  const int32_t* nodes_ = nullptr;
  int32_t pitch_ = 1, node_ = -1;
};

}  // namespace knnconv::hopper
