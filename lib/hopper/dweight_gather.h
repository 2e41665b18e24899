// Weight gradients of small batches on Hopper, over tables without slots: rows of x are gathered one by one.
//
//     dw[r, o] = sum over positions:  x[source(position, slot of r), channel of r] * g[position, o]
//
//                        positions (64 rows of g, in order)           columns, in boxes of 64
//     rows   [ x: 64 channels of each position's neighbour ]  @  positions [ g              ]
//
// A position is a row of g, counted over all batch entries (of all groups that are summed), so that g comes in boxes of
// 64 rows that follow each other.
// A box of x has a line for each of a step's positions: the row of x that is its neighbour in the box's slot. (Boxes of
// one node's batch entries, as in dweight_kernel.h, would be mostly empty.) A team of two warps copies a step's lines
// and reads the table ahead of them into shared memory; what takes its time is waiting (for the table, for a stage, for
// each other), so that several teams take turns. The ring, the products and the partial sums are those of
// dweight_kernel.h. What bounds it: filling shared memory, about 28 bytes a cycle.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_taps.h"
#include "hopper/dweight_bias.h"
#include "hopper/dweight_producer.h"
#include "hopper/dweight_products.h"
#include "hopper/dweight_task.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

inline constexpr int kGatherThreads = 64;  // of a team, one for each position of a step
static_assert(kGatherThreads == kStep);

inline constexpr int kGatherLines = kGatherThreads / 8;  // that are copied at once, 8 threads a line

// What the warps of a team share.
template <typename Tile>
struct GatherTable {
  static constexpr int kAhead = 4, kSteps = kAhead + 1;
  // The table's entries of the team's next steps; a thread reads its own.
  int32_t index[kSteps][Tile::kRowBoxes][kStep];
  // Rows of x, or -1: of a step, and of the one before, which threads may still be copying. A thread's are neighbours.
  int32_t row[2][Tile::kRowBoxes][kGatherLines][kStep / kGatherLines];
};

// A tile whose stages leave room for the table.
template <typename Base>
struct GatherTile : Base {
  static constexpr bool kGathers = true;
  // Where there are registers for it, a second warpgroup: two of its warps gather, and two sum rows of g.
  static constexpr bool kHasMoreTeams = LeavesRegisters(Base::kSize);
  static constexpr int kTeams = kHasMoreTeams ? 3 : 2, kThreads = Base::kThreads + (kHasMoreTeams ? 128 : 0);
  static constexpr int kTableBytes = kTeams * sizeof(GatherTable<Base>), kRoom = Base::kRoom - kTableBytes;
  static constexpr int kStages = kRoom / Base::kStageBytes < 16 ? kRoom / Base::kStageBytes : 16;
  static constexpr int kSharedBytes = kStages * Base::kStageBytes + 1024 + 256 + kTableBytes;
  static_assert(kStages >= 3 && kStages >= kTeams);
  // Gathering takes more registers than issuing boxes.
  static constexpr int kProductRegisters = !kHasMoreTeams ? 208 : Base::kWarpgroups < 3 ? 168 : 104;
  static constexpr int kProducerRegisters = Base::kWarpgroups < 3 ? 88 : 80;
};

// A team of warps that gathers: every so manyth of the block's steps. All threads know the tile; each follows one
// position of these steps through the table.
template <typename Tile>
class DweightGatherer {
  using Table = GatherTable<Tile>;
  static constexpr int kAdvance = Tile::kTeams * kStep;  // positions from one step of the team to the next

 public:
  KNNCONV_DEVICE DweightGatherer(const DweightTask& task, const CUtensorMap* g, Table& table, int team, int thread)
      : task_(task), g_(g), table_(table), thread_(thread), barrier_(1 + team), until_turn_(team) {
    place_.Advance(team);
  }

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const int first_box = segment.row_tile * Tile::kRowBoxes;
      row_boxes_ = min(Tile::kRowBoxes, task_.boxes - first_box);
      first_slot_ = first_box / task_.channel_boxes;
      first_channel_box_ = first_box % task_.channel_boxes;
      RunSegment(ring, segment);
    }
    gpu::WaitForCopies<0>();
  }

 private:
  KNNCONV_DEVICE void RunSegment(const DweightRing<Tile>& ring, const DweightSegment& segment) {
    const int steps = static_cast<int>(CeilDiv(segment.steps - until_turn_, Tile::kTeams));  // the team's
    // The thread's position in the first of them.
    const int64_t first = int64_t{segment.first + until_turn_} * kStep + thread_;
    until_turn_ += steps * Tile::kTeams - segment.steps;
    if (steps <= 0) return;
    const auto outputs = static_cast<uint32_t>(task_.table.outputs);
    gpu::BatchWalk ahead(segment.list * task_.g_rows + first, kAdvance, outputs), now = ahead;
    for (int step = 0; step < Table::kAhead; ++step) {
      ReadTable(step, step < steps && first + step * kAdvance < task_.g_rows, &ahead);
      gpu::CommitCopies();
    }
    int place = 0, later_place = Table::kAhead;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int later = step + Table::kAhead;
      ReadTable(later_place, later < steps && first + later * kAdvance < task_.g_rows, &ahead);
      gpu::CommitCopies();
      gpu::WaitForCopies<Table::kAhead>();
      turn_ ^= 1;
      FindRows(place, first + step * kAdvance < task_.g_rows, now);
      now.Advance();
      SyncThreads(barrier_, kGatherThreads);
      LoadStep(ring, segment, static_cast<int>(first + step * kAdvance) - thread_);
      place = place == Table::kSteps - 1 ? 0 : place + 1;
      later_place = later_place == Table::kSteps - 1 ? 0 : later_place + 1;
    }
  }

  // Requests the entries of the thread's position in a later step.
  KNNCONV_DEVICE void ReadTable(int place, bool exists, gpu::BatchWalk* position) const {
    if (exists) {
      const int32_t table_row = task_.groups.Of(position->batch()).first_row + static_cast<int32_t>(position->at());
      const int32_t* const row = task_.table.indices + int64_t{table_row} * task_.table.neighbours;
      int slot = first_slot_, channel_box = first_channel_box_;
#pragma unroll 1
      for (int box = 0; box < row_boxes_; ++box) {
        CopyWord(&table_.index[place][box][thread_], row + slot);
        if (++channel_box == task_.channel_boxes) {
          channel_box = 0;
          ++slot;
        }
      }
    }
    position->Advance();
  }

  // Turns the entries of the thread's position into rows of x.
  KNNCONV_DEVICE void FindRows(int place, bool exists, const gpu::BatchWalk& position) const {
    const int32_t batch_rows = task_.groups.Of(position.batch()).x * task_.table.sources;
#pragma unroll 1
    for (int box = 0; box < row_boxes_; ++box) {
      const int32_t source = table_.index[place][box][thread_];
      const bool is_row = exists && gpu::IsBelow(source, task_.table.sources);
      table_.row[turn_][box][thread_ % kGatherLines][thread_ / kGatherLines] = is_row ? batch_rows + source : -1;
    }
  }

  // Waits until the stage is free, and issues the copies of the step that starts with a position.
  KNNCONV_DEVICE void LoadStep(const DweightRing<Tile>& ring, const DweightSegment& segment, int position) {
    constexpr int kChunk = 8, kThreadsOfLine = kBox / kChunk;
    static_assert(kGatherLines == 8 && kStep / kGatherLines == 8);  // lines 8 apart have the same swizzle
    const int stage = place_.stage, chunk = thread_ % kThreadsOfLine, first_line = thread_ / kThreadsOfLine;
    const int32_t row_bytes = task_.channels * 2;
    Barrier* const full = &ring.full[stage];
    ring.empty[stage].Wait(place_.parity ^ 1);
    if (thread_ == 0) {
      const int first_column = segment.column_tile * Tile::kColumns;
      const int boxes = min(Tile::kColumnBoxes, (task_.columns - first_column + kBox - 1) / kBox);
      full->ArriveExpecting(boxes * kBoxBytes);
      for (int box = 0; box < boxes; ++box) {
        LoadBox(ring.ColumnBox(stage, box), g_, full, first_column + box * kBox, position, segment.list);
      }
    }
    __syncwarp();
    uint32_t to = SharedAddress(ring.RowBox(stage, 0)) + first_line * kLineBytes + ((chunk ^ first_line) << 4);
    int channel = first_channel_box_ * kBox + chunk * kChunk;
#pragma unroll 1
    for (int box = 0; box < row_boxes_; ++box) {
      const char* const from = static_cast<const char*>(task_.x) + channel * 2;
      const bool in_channels = channel < task_.channels;
      union {
        int4 four[2];
        int32_t one[8];
      } row;
      const int4* const rows = reinterpret_cast<const int4*>(table_.row[turn_][box][first_line]);
      row.four[0] = rows[0];
      row.four[1] = rows[1];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool exists = in_channels && row.one[i] >= 0;
        CopyChunk(to + i * kGatherLines * kLineBytes, RowAt(from, row.one[i], row_bytes), exists);
      }
      to += kBoxBytes;
      channel += kBox;
      if (channel >= task_.channel_boxes * kBox) channel -= task_.channel_boxes * kBox;
    }
    full->ArriveAfterCopies();
    place_.Advance(Tile::kTeams);
  }

  const DweightTask& task_;
  const CUtensorMap* const g_;
  Table& table_;
  const int thread_, barrier_;
  int until_turn_;  // steps of the block before the team's next one
  typename DweightRing<Tile>::Place place_;
  int row_boxes_ = 0, first_slot_ = 0, first_channel_box_ = 0;  // of the tile
  int turn_ = 0;
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    DweightGatherKernel(const KNNCONV_PARAMETER CUtensorMap g, const KNNCONV_PARAMETER DweightTask task) {
  extern __shared__ unsigned char shared[];
  DweightRing<Tile> ring;
  ring.stages = shared + (1024 - SharedAddress(shared) % 1024) % 1024;
  ring.full = reinterpret_cast<Barrier*>(ring.stages + Tile::kStages * Tile::kStageBytes);
  ring.empty = ring.full + Tile::kStages;
  auto* const tables = reinterpret_cast<GatherTable<Tile>*>(ring.empty + Tile::kStages);  // of each team
  const int warp = Uniform(static_cast<int>(threadIdx.x / 32)), warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      ring.full[stage].Init(1 + kGatherThreads);
      ring.empty[stage].Init(4 * Tile::kWarpgroups);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
    PrefetchTensorMap(&g);
    LaunchDependents();  // the reduction, whose blocks find room when the first of these end
  }
  __syncthreads();
  constexpr int kRowTeams = RowTeams(Tile::kSize, true), kRowThreads = kBiasWarps * 32;
  const int thread = static_cast<int>(threadIdx.x) % kGatherThreads;
  static_assert(kRowThreads == kGatherThreads);
  // Two pairs of warps of the first warpgroup and, where there is one more than it takes to multiply, of the last one.
  if (warpgroup == 0 || warpgroup > Tile::kWarpgroups) {
    if constexpr (Tile::kMovesRegisters) ShrinkRegisters<Tile::kProducerRegisters>();
    const int pair = (warpgroup == 0 ? warp : warp - Tile::kWarpgroups * 4) * 32 / kGatherThreads;
    if (pair < Tile::kTeams) {
      DweightGatherer<Tile>(task, &g, tables[pair], pair, thread).Run(ring);
    } else if (task.bias_partials != nullptr) {
      SumRows<T, true, kRowTeams>(task, 0, thread);
    }
  } else {
    if constexpr (Tile::kMovesRegisters) GrowRegisters<Tile::kProductRegisters>();
    if (kRowTeams > 1 && task.bias_partials != nullptr) {
      SumRows<T, true, kRowTeams>(task, (warp - 4) * 32 / kRowThreads, thread);
    }
    DweightProducts<T, Tile>(task, warpgroup - 1).Run(ring);
  }
}

}  // namespace knnconv::hopper
