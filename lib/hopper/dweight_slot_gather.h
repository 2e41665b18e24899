// How rows are gathered over tables with slots, by the slot order.
//
// A list is a slot (of a group of the result), and its positions are the slot's taps, each in all batch entries; those
// of a member of the list begin with a step of their own, whose number dweight_starts.h finds. Each position has a row
// of x and a row of g: both are gathered, and all boxes of a tile have the same rows.
#pragma once

#include <cstdint>

#include "hopper/dweight_gather.h"
#include "hopper/dweight_starts.h"

namespace knnconv::hopper {

// What the warps of a team share, of x and of g. A thread reads its own of the taps of next steps: the source and the
// row, and the number of rows before the tap's batch entry; -1 where there is no tap.
struct SlotTable {
  enum Operand { kX, kG, kOperands };
  int32_t tap[kGatherPlaces][kOperands][kStep], before[kGatherPlaces][kOperands][kStep];
  GatheredRows row[2][kOperands];
};

template <typename Tile>
class SlotGatherer : public GatherTeam<Tile, SlotGatherer<Tile>> {
 public:
  static constexpr int kOtherArrivals = 0;

  KNNCONV_DEVICE SlotGatherer(const DweightTask& task, const CUtensorMap*, SlotTable& table, int team, int thread)
      : Base(task, team, thread), table_(table) {}

 private:
  using Base = GatherTeam<Tile, SlotGatherer<Tile>>;
  friend Base;
  using Base::task_, Base::thread_, Base::place_, Base::turn_;
  static constexpr int kX = SlotTable::kX, kG = SlotTable::kG;

  KNNCONV_DEVICE void Enter(const DweightSegment& segment, int step) {
    result_ = segment.list / task_.table.slot_count;
    slot_ = segment.list - result_ * task_.table.slot_count;
    start_ = task_.groups.StartOf(result_);
    // The member that holds the step: the last one that starts no later.
    starts_ = task_.starts + int64_t{segment.list} * task_.groups.members;
    next_ = gpu::ReadOnly(starts_) + step;
    int first = 0, end = task_.groups.members;
#pragma unroll 1
    while (end - first > 1) {
      const int middle = first + (end - first) / 2;
      if (gpu::ReadOnly(starts_ + middle) <= next_) {
        first = middle;
      } else {
        end = middle;
      }
    }
    EnterMember(first);
  }

  KNNCONV_DEVICE void EnterMember(int member) {
    member_ = member;
    begin_ = gpu::ReadOnly(starts_ + member);
    end_ = gpu::ReadOnly(starts_ + member + 1);
    const MemberTaps taps = TapsOf(task_, start_.first_row, member, slot_);
    first_tap_ = taps.first;
    taps_ = taps.count;
    order_ = taps.matrix * task_.order_entries;
    x_entry_ = start_.x + member * task_.groups.x_step;
  }

  KNNCONV_DEVICE void ReadTable(int place, bool exists) {
    if (!exists) return;
#pragma unroll 1
    while (next_ >= end_) EnterMember(member_ + 1);
    const gpu::Divisor::Result in = task_.groups.by_entries.Divide((next_ - begin_) * kStep + thread_);
    const bool is_tap = in.quotient < taps_;
    // Entries of g follow each other, member by member.
    const int32_t g_entry = (result_ * task_.groups.members + member_) * task_.groups.entries + in.remainder;
    table_.before[place][kX][thread_] = is_tap ? (x_entry_ + in.remainder) * task_.table.sources : -1;
    table_.before[place][kG][thread_] = is_tap ? g_entry * task_.table.outputs : -1;
    if (is_tap) {
      const int64_t tap = order_ + first_tap_ + in.quotient;
      CopyWord(&table_.tap[place][kX][thread_], task_.sources + tap);
      CopyWord(&table_.tap[place][kG][thread_], task_.rows + tap);
    }
    next_ += Tile::kTeams;
  }

  KNNCONV_DEVICE void FindRows(int place) {
#pragma unroll
    for (int operand = 0; operand < SlotTable::kOperands; ++operand) {
      const int32_t before = table_.before[place][operand][thread_];
      const int32_t row = before < 0 ? -1 : before + table_.tap[place][operand][thread_];
      table_.row[turn_][operand][thread_ % kGatherLines][thread_ / kGatherLines] = row;
    }
  }

  KNNCONV_DEVICE void LoadStep(const DweightRing<Tile>& ring, const DweightSegment& segment, int) {
    const int first_column = segment.column_tile * Tile::kColumns, boxes = Base::ColumnBoxes(first_column);
    Base::CopyRowBoxes(ring, [&](int) -> const GatheredRows& { return table_.row[turn_][kX]; });
#pragma unroll 1
    for (int box = 0; box < boxes; ++box) {
      Base::CopyLines(ring.ColumnBox(place_.stage, box), table_.row[turn_][kG], task_.g, task_.columns * 2,
                      first_column + box * kBox, task_.columns);
    }
  }

  SlotTable& table_;
  int result_ = 0, slot_ = 0;        // of the list
  GatherGroups::Reads start_ = {};   // likewise
  const int32_t* starts_ = nullptr;  // of its members, in steps of the line
  int next_ = 0;                     // the team's next step, likewise
  // Of the member that has it: its steps, its taps in an order of the table, and its first entry of x.
  int member_ = 0, begin_ = 0, end_ = 0, first_tap_ = 0, taps_ = 0, x_entry_ = 0;
  int64_t order_ = 0;  // entries before that order
};

}  // namespace knnconv::hopper
