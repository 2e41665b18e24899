// How rows of x are gathered over tables without slots.
//
// A position is a row of g, counted over all batch entries (of all groups that are summed), so that the copy engine
// brings g in boxes of 64 rows that follow each other. A box of x has the row of x that is each position's neighbour in
// the box's slot.
#pragma once

#include <cstdint>

#include "gpu/dweight_taps.h"
#include "hopper/dweight_gather.h"

namespace knnconv::hopper {

// What the warps of a team share: the table's entries of its next steps, of which a thread reads its own, and rows.
template <int kRowBoxes>
struct ColumnTable {
  int32_t index[kGatherPlaces][kRowBoxes][kStep];
  GatheredRows row[2][kRowBoxes];
};

template <typename Tile>
class ColumnGatherer : public GatherTeam<Tile, ColumnGatherer<Tile>> {
 public:
  static constexpr int kOtherArrivals = 1;  // at a stage's barrier: of g's copies

  KNNCONV_DEVICE ColumnGatherer(const DweightTask& task, const CUtensorMap* g, typename Tile::Table& table, int team,
                                int thread)
      : Base(task, team, thread), g_(g), table_(table) {}

 private:
  using Base = GatherTeam<Tile, ColumnGatherer<Tile>>;
  friend Base;
  using Base::task_, Base::thread_, Base::place_, Base::turn_, Base::row_boxes_, Base::first_slot_;

  KNNCONV_DEVICE void Enter(const DweightSegment& segment, int step) {
    start_ = task_.groups.StartOf(segment.list);
    entries_ = static_cast<uint32_t>(task_.groups.members * task_.groups.entries);
    ahead_ = gpu::BatchWalk(int64_t{step} * kStep + thread_, Tile::kTeams * kStep,
                            static_cast<uint32_t>(task_.table.outputs));
    now_ = ahead_;
  }

  KNNCONV_DEVICE void ReadTable(int place, bool exists) {
    if (exists && ahead_.batch() < entries_) {
      const int32_t table_row =
          task_.groups.Of(start_, ahead_.batch()).first_row + static_cast<int32_t>(ahead_.at());
      const int32_t* const row = task_.table.indices + int64_t{table_row} * task_.table.neighbours;
      int slot = first_slot_, channel_box = Base::first_channel_box_;
#pragma unroll 1
      for (int box = 0; box < row_boxes_; ++box) {
        CopyWord(&table_.index[place][box][thread_], row + slot);
        if (++channel_box == task_.channel_boxes) {
          channel_box = 0;
          ++slot;
        }
      }
    }
    ahead_.Advance();
  }

  KNNCONV_DEVICE void FindRows(int place) {
    const bool exists = now_.batch() < entries_;
    const int32_t batch_rows = task_.groups.Of(start_, now_.batch()).x * task_.table.sources;
#pragma unroll 1
    for (int box = 0; box < row_boxes_; ++box) {
      const int32_t source = table_.index[place][box][thread_];
      const bool is_row = exists && gpu::IsBelow(source, task_.table.sources);
      table_.row[turn_][box][thread_ % kGatherLines][thread_ / kGatherLines] = is_row ? batch_rows + source : -1;
    }
    now_.Advance();
  }

  KNNCONV_DEVICE void LoadStep(const DweightRing<Tile>& ring, const DweightSegment& segment, int position) {
    if (thread_ == 0) {
      Barrier* const full = &ring.full[place_.stage];
      const int first_column = segment.column_tile * Tile::kColumns, boxes = Base::ColumnBoxes(first_column);
      full->ArriveExpecting(boxes * kBoxBytes);
      for (int box = 0; box < boxes; ++box) {
        LoadBox(ring.ColumnBox(place_.stage, box), g_, full, first_column + box * kBox, position, segment.list);
      }
    }
    __syncwarp();
    Base::CopyRowBoxes(ring, [&](int box) -> const GatheredRows& { return table_.row[turn_][box]; });
  }

  const CUtensorMap* const g_;
  typename Tile::Table& table_;
  gpu::BatchWalk ahead_, now_;
  uint32_t entries_ = 0;            // of the list
  GatherGroups::Reads start_ = {};  // likewise
};

}  // namespace knnconv::hopper
