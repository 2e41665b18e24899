// What the warps of a weight gradient's thread blocks share on Hopper: the task, the tile, and the ring of stages that
// steps pass through.
#pragma once

#include <cstdint>

#include "gpu/divisor.h"
#include "gpu/dweight.h"
#include "hopper/device.h"
#include "hopper/dweight_plan.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

enum class TapsKind : int {
  kColumns,
  kSlots,
  kDense,
  kGatheredColumns,  // rows of x are copied one by one
  kGatheredSlots,    // and rows of g, too
};

// Groups of what is gathered. Entries of the batch are numbered over all members of a result.
struct GatherGroups {
  int32_t members, entries;    // of a result; of a member
  gpu::Divisor by_entries;
  int32_t x_step, table_step;  // from one member to the next: entries of x, rows of the table
  int32_t x_gap;               // entries of x between the last of a member and the next one's first
  gpu::GroupShape results;
  gpu::GroupStrides x, table;  // of the results, in the same units

#if defined(KNNCONV_KERNELS)
  // What an entry reads: an entry of x, and rows of the table from `first_row` on.
  struct Reads {
    int32_t x, first_row;
  };
  // The first entry of a result.
  KNNCONV_DEVICE Reads StartOf(int32_t result) const {
    if (result == 0) return {0, 0};
    return {static_cast<int32_t>(x.Offset(results, result)), static_cast<int32_t>(table.Offset(results, result))};
  }
  KNNCONV_DEVICE Reads Of(const Reads& start, uint32_t entry) const {
    const int member = by_entries.Divide(static_cast<int>(entry)).quotient;
    return {start.x + static_cast<int>(entry) + member * x_gap, start.first_row + member * table_step};
  }
#endif
};

// All that a launch of the kernel takes beside the tensor maps.
struct DweightTask {
  DweightSchedule schedule;
  TapsKind kind;
  int32_t boxes;          // rows of a list, or strips
  int32_t channel_boxes;  // of a slot, or of a kernel row
  int32_t columns;        // of dw
  int32_t chain;          // steps whose products lie in one chain in the accumulators
  gpu::NeighborTable table;
  const int32_t* rows;     // of the slot order's taps
  const int32_t* sources;  // of the slot order's taps
  // Of kGatheredSlots, whose tables have an order each, of so many entries: the slot order's offsets.
  const int32_t* slot_offsets;
  int64_t order_entries;
  const int32_t* starts;  // of each list's members, in the line of all steps, and its end; likewise
  gpu::DenseTaps dense;
  int32_t pitch;         // of a dense convolution: positions from one line of pixels to the next
  float* partials;       // a tile for each part
  float* bias_partials;  // kBiasSums for each part; unless SumsBoxes, for each share and kBiasSums columns; null: no db
  int32_t results;       // groups of dw
  bool own_g;            // whether each of them has rows of g of its own; kDense only
  int32_t own_images;    // of x, of each of them; 0 where they share x; kDense only
  GatherGroups groups;   // of what is gathered
  const void* x;         // [entries * table.sources, channels]; likewise
  int32_t channels;      // likewise
  const void* g;         // [g_rows, columns], of each list that has its own
  int64_t g_rows;        // of all batch entries, of a list
  int32_t row_teams;     // of a block, that sum rows of g from memory

  // Shares of the rows of g that each group of the result has, where db is summed from memory.
  KNNCONV_HOST_DEVICE int32_t RowShares() const {
    const int32_t teams = schedule.blocks * row_teams;
    return results < teams ? teams / results : 1;
  }

  // With slots a tile's steps are not of all rows of g; where x is gathered, some rows of a step may count and others
  // not; there, db is summed from g in memory.
  KNNCONV_HOST_DEVICE bool SumsBoxes() const {
    return bias_partials != nullptr && (kind == TapsKind::kColumns || kind == TapsKind::kDense);
  }
};

template <int kWarpgroups_, int kBoxes_, int kColumns_, int kTaps_>
struct DweightTile {
  static constexpr DweightTileSize kSize = {kWarpgroups_, kBoxes_, kColumns_, kTaps_};
  static constexpr int kWarpgroups = kWarpgroups_, kBoxes = kBoxes_, kColumns = kColumns_;  // kBoxes: of a warpgroup
  static constexpr int kTaps = kTaps_;
  static constexpr bool kHasStrips = kSize.has_strips();
  static constexpr bool kGathers = false;
  static constexpr int kRowBoxes = kSize.row_boxes(), kColumnBoxes = kColumns / kBox;
  static constexpr int64_t kElements = kSize.elements();
  static constexpr int kThreads = (1 + kWarpgroups) * 128;
  static constexpr int kWidth = kSize.width();  // of products
  static_assert(!kHasStrips || (kBoxes == 1 && kColumns == kBox));

  static constexpr int kRowBoxBytes = kHasStrips ? kMostStripLines * kLineBytes : kBoxBytes;
  static constexpr int kStageBytes = kRowBoxes * kRowBoxBytes + kColumnBoxes * kBoxBytes;
  static constexpr int kRoom = kMostBlockBytes - 1024 - 256;  // less what aligning the stages and the barriers take
  static constexpr int kStages = kRoom / kStageBytes < 16 ? kRoom / kStageBytes : 16;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 256;
  static_assert(kStages >= 3 && kRowBoxes + kColumnBoxes <= 32);

  // Of the 65,536 registers of a multiprocessor. A single warpgroup has enough as it is, and few sums need no more than
  // all threads have where two blocks share a multiprocessor.
  static constexpr bool kHasFewSums = HasFewSums(kSize), kMovesRegisters = kWarpgroups > 1 && !kHasFewSums;
  static constexpr int kRegisterShares = kHasFewSums ? 2 : 1;  // of which a block takes one
  static constexpr int kProductRegisters = kWarpgroups < 3 ? 224 : 152;
  static constexpr int kProducerRegisters = 56;
};

// The stages that steps pass through.
template <typename Tile>
struct DweightRing {
  // Where a warp is in the ring, and how often it came by.
  struct Place {
    int stage = 0;
    uint32_t parity = 0;

    KNNCONV_DEVICE void Advance(int steps = 1) {  // at most kStages
      stage += steps;
      if (stage < Tile::kStages) return;
      stage -= Tile::kStages;
      parity ^= 1;
    }
  };

  unsigned char* stages;
  Barrier* full;
  Barrier* empty;

  // In a block's shared memory, from a multiple of 1024 on.
  KNNCONV_DEVICE explicit DweightRing(unsigned char* shared)
      : stages(shared + (1024 - SharedAddress(shared) % 1024) % 1024),
        full(reinterpret_cast<Barrier*>(stages + Tile::kStages * Tile::kStageBytes)),
        empty(full + Tile::kStages) {}

  KNNCONV_DEVICE unsigned char* RowBox(int stage, int box) const {
    return stages + stage * Tile::kStageBytes + box * Tile::kRowBoxBytes;
  }
  KNNCONV_DEVICE unsigned char* ColumnBox(int stage, int box) const {
    return RowBox(stage, Tile::kRowBoxes) + box * kBoxBytes;
  }
};

}  // namespace knnconv::hopper
