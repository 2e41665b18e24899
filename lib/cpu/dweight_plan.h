// How a weight gradient is cut into tasks: by static shapes alone, so that sums do not depend on the thread count.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/dweight_call.h"
#include "cpu/operands.h"

namespace knnconv::cpu {

// Steps summed in one chain in registers. Longer chains lose bits; at 128, adding them up costs 5 % of the time.
inline constexpr int kTapTile = 128;
// Rows whose sums lie in one tile before that is added to the total: bounds the second chain likewise.
inline constexpr int64_t kStretchRows = 4096;
inline constexpr int64_t kColumnGroup = 256;  // columns of dw of one task, at most
inline constexpr int64_t kBandArea = 1 << 16;  // sums of one task: 256 KB, a part of L2
inline constexpr int64_t kBandSlots = 128;     // slots of one task, at most
inline constexpr int kMaxBlockRows = 1024;  // rows of g held at once as fp32 panels
inline constexpr int64_t kStackedChannels = 8;  // slots of so many channels or fewer share a tile of x
inline constexpr int kPanelRows = kTapTile + kTapTile / 8 + 2;  // see LineForm::kMinPairedWidth
inline constexpr int kPanelElements = kPanelRows * kColumnGroup;

// One task's part of dw and of the rows.
struct DweightTile {
  int64_t result, slice;
  int64_t slot, slots;        // whole slots, or
  int64_t channel, channels;  // part of one slot's channels
  int64_t column, columns;
  int64_t row_begin, row_end;  // of all members' rows, one member's behind the other's
  bool first_band;  // its task takes db
};

struct DweightPlan {
  int64_t results, members, rows, slots, channels, columns;

  int64_t block_rows, panel_rows, slices, slice_blocks;
  int64_t band_slots, slot_bands, channel_bands, column_groups;
  int64_t column_stride;  // of a task's sums

  // `rows` are a member's; the call's `max_slices` sums of one result are shared by all results.
  // `pairs`: two rows are one step of a sum.
  static DweightPlan Make(const DweightCall& call, int64_t rows, double taps_per_row_and_slot, bool pairs) {
    const int64_t slots = call.slots, channels = call.channels, columns = call.columns;
    DweightPlan plan{call.results, call.members, rows, slots, channels, columns, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    plan.column_groups = CeilDiv(columns, kColumnGroup);
    plan.column_stride = CeilDiv(std::min(columns, kColumnGroup), 16) * 16;
    const int64_t band_rows = kBandArea / std::max<int64_t>(1, plan.column_stride);
    plan.channel_bands = std::max<int64_t>(1, CeilDiv(channels, band_rows));
    const int64_t most_slots = std::clamp<int64_t>(band_rows / std::max<int64_t>(1, channels), 1, kBandSlots);
    plan.slot_bands = std::max<int64_t>(1, CeilDiv(slots, most_slots));
    plan.band_slots = CeilDiv(slots, plan.slot_bands);

    // Panels of few columns leave room for more rows, which tables with few taps a slot need to fill a tile.
    const int64_t padded = CeilDiv(std::min<int64_t>(columns, kColumnGroup), 32) * 32;
    plan.block_rows = pairs ? 2 * kTapTile : kTapTile;
    plan.panel_rows = kPanelRows;
    while (plan.block_rows * 2 * padded <= kPanelElements && plan.block_rows < kMaxBlockRows &&
           plan.block_rows * taps_per_row_and_slot < kTapTile / 2) {
      plan.panel_rows = plan.block_rows *= 2;
    }

    const int64_t all_rows = call.members * rows, blocks = std::max<int64_t>(1, CeilDiv(all_rows, plan.block_rows));
    const int64_t bands = call.results * plan.slot_bands * plan.channel_bands * plan.column_groups;
    constexpr int64_t kEnoughTasks = 64, kMinSliceRows = 512;
    plan.slices = std::min({call.max_slices / std::max<int64_t>(1, call.results), all_rows / kMinSliceRows,
                            CeilDiv(kEnoughTasks, std::max<int64_t>(1, bands)), blocks});
    plan.slices = std::max<int64_t>(1, plan.slices);
    plan.slice_blocks = CeilDiv(blocks, plan.slices);
    plan.slices = CeilDiv(blocks, plan.slice_blocks);  // none empty
    return plan;
  }

  int64_t tasks() const { return results * slices * slot_bands * channel_bands * column_groups; }

  DweightTile Tile(int64_t task) const {
    const auto take = [&task](int64_t size) {
      const int64_t position = task % size;
      task /= size;
      return position;
    };
    DweightTile tile;
    const int64_t column_group = take(column_groups), channel_band = take(channel_bands), slot_band = take(slot_bands);
    tile.slice = take(slices);
    tile.result = task;
    tile.first_band = channel_band == 0 && slot_band == 0;
    const auto even = [](int64_t size, int64_t parts, int64_t part) { return size * part / parts; };
    tile.slot = slot_band * band_slots;
    tile.slots = std::max<int64_t>(0, std::min(band_slots, slots - tile.slot));
    tile.channel = even(channels, channel_bands, channel_band);
    tile.channels = even(channels, channel_bands, channel_band + 1) - tile.channel;
    tile.column = column_group * kColumnGroup;
    tile.columns = std::min<int64_t>(kColumnGroup, columns - tile.column);
    tile.row_begin = std::min(members * rows, tile.slice * slice_blocks * block_rows);
    tile.row_end = std::min(members * rows, tile.row_begin + slice_blocks * block_rows);
    return tile;
  }
};

}  // namespace knnconv::cpu
