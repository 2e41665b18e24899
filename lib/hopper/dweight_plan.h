// How a weight gradient is cut for Hopper: into tiles of dw, and each tile's depth into the work of thread blocks.
//
// Rows of dw come in boxes of 64 channels of one slot, columns in boxes of 64. Depth comes in steps of kStep positions.
// A *list* is what has one depth: all slots together where each has a tap in every row of g (dense, tables without
// slots), else one slot. All tiles' steps, list by list, tile by tile, form one line that is cut evenly over the thread
// blocks; where a cut falls inside a tile, two blocks hold partial sums of it, and a second kernel adds a tile's parts
// in the order of the line. There are fewer parts than blocks and tiles together. All of this follows from shapes (and,
// where slots have lists of their own, from the table): the same call always gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/arithmetic.h"
#include "gpu/lanes.h"
#include "gpu/vendor.h"
#include "hopper/dweight_tiles.h"

namespace knnconv::hopper {

using gpu::CeilDiv;

// A value that all threads of a warp have. The compiler then keeps it, and what follows from it, in uniform registers,
// from which the copy engine takes its operands.
KNNCONV_DEVICE int32_t Uniform(int32_t value) { return gpu::GroupShuffle(value, 0, gpu::kGroupLanes); }

// The line of all steps and its cuts. Its length has 31 bits.
struct DweightSchedule {
  int32_t lists;
  int32_t row_tiles;     // of a list
  int32_t column_tiles;  // of dw
  int32_t blocks;
  int32_t steps_of_row;    // a row of the table stands for so many steps; 1 where there is none
  int32_t steps;           // of each list, where `offsets` is null
  // Rows of the table before each list, as in the slot order (64-bit numbers, low word first), or steps
  // (dweight_starts.h); null: all lists have the same depth.
  const int32_t* offsets;

  KNNCONV_HOST_DEVICE int32_t tiles_of_list() const { return row_tiles * column_tiles; }
  KNNCONV_HOST_DEVICE int32_t tiles() const { return lists * tiles_of_list(); }

  KNNCONV_DEVICE int32_t Offset(int32_t list) const { return gpu::ReadOnly(offsets + 2 * int64_t{list}); }

  // Steps of one tile of a list.
  KNNCONV_DEVICE int32_t StepsOf(int32_t list) const {
    return offsets == nullptr ? steps : (Offset(list + 1) - Offset(list)) * steps_of_row;
  }

  // Steps of the line before a list. The list after the last one has the line's length.
  KNNCONV_DEVICE int32_t Before(int32_t list) const {
    return (offsets == nullptr ? steps * list : Offset(list) * steps_of_row) * tiles_of_list();
  }

  KNNCONV_DEVICE int32_t Length() const { return Before(lists); }

  // Blocks that have steps: the first ones.
  KNNCONV_DEVICE uint32_t BusyBlocks(int32_t length) const { return static_cast<uint32_t>(min(length, blocks)); }

  // The first step of a block, and the block of a step. Blocks that have a step more than others are spread evenly: the
  // more cuts meet the ends of tiles, the fewer parts there are.
  KNNCONV_DEVICE int32_t FirstOf(int32_t length, int32_t block) const {
    // length * at / busy; 32 bits hold each product, since blocks are as many as multiprocessors at most.
    const uint32_t busy = max(BusyBlocks(length), 1u), at = min(static_cast<uint32_t>(block), busy);
    const uint32_t share = static_cast<uint32_t>(length) / busy, left = static_cast<uint32_t>(length) - share * busy;
    return static_cast<int32_t>(share * at + left * at / busy);
  }
  KNNCONV_DEVICE int32_t BlockOf(int32_t length, int32_t step) const {
    const uint32_t busy = BusyBlocks(length), steps = static_cast<uint32_t>(length);
    const uint64_t reached = static_cast<uint64_t>(step + 1) * busy - 1;
    if (reached >> 32 == 0) return static_cast<int32_t>(static_cast<uint32_t>(reached) / steps);
    return static_cast<int32_t>(reached / steps);
  }
};

// What a block does of one tile.
struct DweightSegment {
  int32_t list, row_tile, column_tile;
  int32_t first, steps;  // of the tile's depth
  int32_t part;          // where its partial sums are: its block's and its tile's numbers added, which none shares
};

// Numbers of a tile's first part and of the one behind its last. They are consecutive.
struct DweightParts {
  int32_t first, end;
};

KNNCONV_DEVICE DweightParts PartsOf(const DweightSchedule& schedule, int32_t list, int32_t tile) {
  const int32_t steps = schedule.StepsOf(list), begin = schedule.Before(list) + steps * tile;
  const int32_t number = list * schedule.tiles_of_list() + tile;
  if (steps == 0) return {0, 0};
  const int32_t length = schedule.Length();
  return {number + schedule.BlockOf(length, begin), number + schedule.BlockOf(length, begin + steps - 1) + 1};
}

// The rows of a table that a segment's steps are of, and each step's part of its row's batch entries. All rows pass
// with their first part, then with the next one: blocks then read the same part of x, from all over the table, at about
// the same time, and L2 holds it.
class DweightRows {
 public:
  KNNCONV_DEVICE DweightRows(const DweightSchedule& schedule, const DweightSegment& segment)
      : parts_(schedule.steps_of_row), first_(segment.first), end_(segment.first + segment.steps) {
    // The segment is a stretch of steps in the order of rows; the first and the last row may lack parts.
    part_ = segment.steps >= parts_ ? 0 : first_ % parts_;
    Enter();
  }

  KNNCONV_DEVICE int32_t row() const { return row_; }
  KNNCONV_DEVICE int32_t part() const { return part_; }

  KNNCONV_DEVICE void Advance() {
    ++row_;
    if (row_ * parts_ + part_ < end_) return;
    part_ = part_ == parts_ - 1 ? 0 : part_ + 1;
    Enter();
  }

 private:
  // The first row that has this part.
  KNNCONV_DEVICE void Enter() { row_ = first_ / parts_ + (first_ % parts_ > part_ ? 1 : 0); }

  const int32_t parts_, first_, end_;
  int32_t row_, part_;
};

// A block's way along its stretch of the line. Whole warps walk.
class DweightWalk {
 public:
  KNNCONV_DEVICE DweightWalk(const DweightSchedule& schedule, int32_t block) : schedule_(schedule) {
    const int32_t length = Uniform(schedule.Length());
    at_ = schedule.FirstOf(length, block);
    end_ = schedule.FirstOf(length, block + 1);
    if (at_ < end_) Find();
  }

  KNNCONV_DEVICE bool exists() const { return at_ < end_; }

  KNNCONV_DEVICE DweightSegment segment() const {
    const int32_t tile = (at_ - begin_) / steps_, first = at_ - begin_ - tile * steps_;
    return {list_,
            tile / schedule_.column_tiles,
            tile % schedule_.column_tiles,
            first,
            min(steps_ - first, end_ - at_),
            list_ * schedule_.tiles_of_list() + tile + static_cast<int32_t>(blockIdx.x)};
  }

  KNNCONV_DEVICE void Advance(int32_t steps) {
    at_ += steps;
    if (exists()) Find();
  }

 private:
  // The list that holds step at_: the last one that starts no later.
  KNNCONV_DEVICE void Find() {
    int32_t end = schedule_.lists;
    list_ = 0;
#pragma unroll 1
    while (end - list_ > 1) {
      const int32_t middle = list_ + (end - list_) / 2;
      if (schedule_.Before(middle) <= at_) {
        list_ = middle;
      } else {
        end = middle;
      }
    }
    list_ = Uniform(list_);
    begin_ = Uniform(schedule_.Before(list_));
    steps_ = Uniform(schedule_.StepsOf(list_));
  }

  const DweightSchedule& schedule_;
  int32_t at_, end_, list_ = 0, begin_ = 0, steps_ = 1;  // begin_, steps_: of the list
};

}  // namespace knnconv::hopper
