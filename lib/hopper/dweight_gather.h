// Weight gradients of small batches and of a table a sample on Hopper: rows are gathered one by one.
//
//     dw[r, o] = sum over positions:  x[source(position, slot of r), channel of r] * g[row(position), o]
//
//                        positions (64 a step)                        columns, in boxes of 64
//     rows   [ x: 64 channels of each position's source ]  @  positions [ g: its row     ]
//
// Boxes of one node's batch entries, as in dweight_kernel.h, would be mostly empty, or of one group. So a box has a
// line for each of a step's positions. What these are is another matter: dweight_column_gather.h,
// dweight_slot_gather.h. A team of two warps copies a step's lines and reads the table ahead of them into shared
// memory; what takes its time is waiting (for the table, for a stage, for each other), so that several teams take
// turns. The ring, the products and the partial sums are those of dweight_kernel.h. What bounds it: filling shared
// memory, about 28 bytes a cycle.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "hopper/dweight_bias.h"
#include "hopper/dweight_producer.h"
#include "hopper/dweight_products.h"
#include "hopper/dweight_task.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

inline constexpr int kGatherThreads = 64;  // of a team, one for each position of a step
static_assert(kGatherThreads == kStep);

inline constexpr int kGatherLines = kGatherThreads / 8;  // that are copied at once, 8 threads a line
inline constexpr int kGatherAhead = 4;                   // steps that a team reads the table ahead
inline constexpr int kGatherPlaces = kGatherAhead + 1;

// Rows of an operand, or -1, that the lines of a box are. A thread's lines are neighbours.
using GatheredRows = int32_t[kGatherLines][kStep / kGatherLines];

// A tile whose stages leave room for what the warps of each team share.
template <typename Base, typename Table_>
struct GatherTile : Base {
  using Table = Table_;
  static constexpr bool kGathers = true;
  // Where there are registers for it, a second warpgroup: two of its warps gather, and two sum rows of g.
  static constexpr bool kHasMoreTeams = LeavesRegisters(Base::kSize);
  static constexpr int kTeams = kHasMoreTeams ? 3 : 2, kThreads = Base::kThreads + (kHasMoreTeams ? 128 : 0);
  static constexpr int kTableBytes = kTeams * sizeof(Table), kRoom = Base::kRoom - kTableBytes;
  static constexpr int kStages = kRoom / Base::kStageBytes < 16 ? kRoom / Base::kStageBytes : 16;
  static constexpr int kSharedBytes = kStages * Base::kStageBytes + 1024 + 256 + kTableBytes;
  static_assert(kStages >= 3 && kStages >= kTeams);
  static constexpr bool kMovesRegisters = Base::kWarpgroups > 1;
  // Gathering takes more registers than issuing boxes.
  static constexpr int kProductRegisters = !kHasMoreTeams ? 208 : Base::kWarpgroups < 3 ? 168 : 104;
  static constexpr int kProducerRegisters = Base::kWarpgroups < 3 ? 88 : 80;
};

// A team of warps that gathers: every so manyth of the block's steps. All threads know the tile; each follows one
// position of these steps through the table. Self says how:
//
//     Enter(segment, step)                    the team comes to a segment; step is its first there
//     ReadTable(place, exists)                requests what the thread's position of the next step reads
//     FindRows(place)                         turns that into rows of operands, steps in the same order
//     LoadStep(ring, segment, position)       issues the copies of the step that starts with a position
template <typename Tile, typename Self>
class GatherTeam {
 public:
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

 protected:
  KNNCONV_DEVICE GatherTeam(const DweightTask& task, int team, int thread)
      : task_(task), thread_(thread), barrier_(1 + team), until_turn_(team) {
    place_.Advance(team);
  }

  // The column boxes of a segment's tile that exist.
  KNNCONV_DEVICE int ColumnBoxes(int first_column) const {
    return min(Tile::kColumnBoxes, (task_.columns - first_column + kBox - 1) / kBox);
  }

  // Issues the copies of a box's lines: those of `rows`, `row_bytes` each, from element `first` of `width` on.
  KNNCONV_DEVICE void CopyLines(unsigned char* box, const GatheredRows& rows, const void* from, int32_t row_bytes,
                                int first, int width) const {
    constexpr int kChunk = 8, kThreadsOfLine = kBox / kChunk;
    static_assert(kGatherLines == 8 && kStep / kGatherLines == 8);  // lines 8 apart have the same swizzle
    const int chunk = thread_ % kThreadsOfLine, first_line = thread_ / kThreadsOfLine;
    const uint32_t to = SharedAddress(box) + first_line * kLineBytes + ((chunk ^ first_line) << 4);
    const int element = first + chunk * kChunk;
    const char* const at = static_cast<const char*>(from) + element * 2;
    union {
      int4 four[2];
      int32_t one[8];
    } row;
    const int4* const lines = reinterpret_cast<const int4*>(rows[first_line]);
    row.four[0] = lines[0];
    row.four[1] = lines[1];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool exists = element < width && row.one[i] >= 0;
      CopyChunk(to + i * kGatherLines * kLineBytes, RowAt(at, row.one[i], row_bytes), exists);
    }
  }

  // The same for all boxes of x, whose rows are rows_of(box).
  template <typename RowsOf>
  KNNCONV_DEVICE void CopyRowBoxes(const DweightRing<Tile>& ring, const RowsOf& rows_of) const {
    int channel_box = first_channel_box_;
#pragma unroll 1
    for (int box = 0; box < row_boxes_; ++box) {
      CopyLines(ring.RowBox(place_.stage, box), rows_of(box), task_.x, task_.channels * 2, channel_box * kBox,
                task_.channels);
      if (++channel_box == task_.channel_boxes) channel_box = 0;
    }
  }

  const DweightTask& task_;
  const int thread_;
  typename DweightRing<Tile>::Place place_;
  int row_boxes_ = 0, first_slot_ = 0, first_channel_box_ = 0;  // of the tile
  int turn_ = 0;  // of rows: those of the step before are there, too, since threads may still be copying them

 private:
  KNNCONV_DEVICE void RunSegment(const DweightRing<Tile>& ring, const DweightSegment& segment) {
    Self& self = static_cast<Self&>(*this);
    const int steps = static_cast<int>(CeilDiv(segment.steps - until_turn_, Tile::kTeams));  // the team's
    int number = segment.first + until_turn_;                                                // of the first of them
    until_turn_ += steps * Tile::kTeams - segment.steps;
    if (steps <= 0) return;
    self.Enter(segment, number);
    for (int step = 0; step < kGatherAhead; ++step) {
      self.ReadTable(step, step < steps);
      gpu::CommitCopies();
    }
    int place = 0, later_place = kGatherAhead;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      self.ReadTable(later_place, step + kGatherAhead < steps);
      gpu::CommitCopies();
      gpu::WaitForCopies<kGatherAhead>();
      turn_ ^= 1;
      self.FindRows(place);
      SyncThreads(barrier_, kGatherThreads);
      ring.empty[place_.stage].Wait(place_.parity ^ 1);
      self.LoadStep(ring, segment, number * kStep);
      ring.full[place_.stage].ArriveAfterCopies();
      place_.Advance(Tile::kTeams);
      number += Tile::kTeams;
      place = place == kGatherPlaces - 1 ? 0 : place + 1;
      later_place = later_place == kGatherPlaces - 1 ? 0 : later_place + 1;
    }
  }

  const int barrier_;
  int until_turn_;  // steps of the block before the team's next one
};

template <typename T, typename Tile, typename Gatherer>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    DweightGatherKernel(const KNNCONV_PARAMETER CUtensorMap g, const KNNCONV_PARAMETER DweightTask task) {
  extern __shared__ unsigned char shared[];
  const DweightRing<Tile> ring(shared);
  auto* const tables = reinterpret_cast<typename Tile::Table*>(ring.empty + Tile::kStages);  // of each team
  const int warp = Uniform(static_cast<int>(threadIdx.x / 32)), warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      ring.full[stage].Init(kGatherThreads + Gatherer::kOtherArrivals);
      ring.empty[stage].Init(4 * Tile::kWarpgroups);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
    if constexpr (Gatherer::kOtherArrivals > 0) PrefetchTensorMap(&g);
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
      Gatherer(task, &g, tables[pair], pair, thread).Run(ring);
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
