// The warps of a weight gradient's thread block that sum the bias gradient.
//
//     db[o] = sum over rows:  g[row, o]
//
// Where each step has rows of g of its own that all count or all do not, they sum the boxes of g that are there anyway.
// With a slot order, and where rows of x are gathered, it has not: there, each block sums its share of g's rows from
// memory while the others multiply, or those that multiply do it first, where the other warps gather.
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "hopper/dweight_task.h"
#include "hopper/float4_sums.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// Four neighbouring columns.
template <typename T>
struct alignas(4 * sizeof(T)) FourOf {
  T value[4];
};

template <typename T>
KNNCONV_DEVICE void Add(float4* sum, const FourOf<T>& four) {
  sum->x += gpu::ToFloat(four.value[0]);
  sum->y += gpu::ToFloat(four.value[1]);
  sum->z += gpu::ToFloat(four.value[2]);
  sum->w += gpu::ToFloat(four.value[3]);
}

KNNCONV_DEVICE bool IsBelow(int32_t index, int32_t size) {
  return static_cast<uint32_t>(index) < static_cast<uint32_t>(size);
}

// Whether a tap of the table is none of its holes.
KNNCONV_DEVICE bool IsTap(const gpu::NeighborTable& table, int64_t tap) {
  const bool has_slot = table.slots == nullptr || IsBelow(gpu::ReadOnly(table.slots + tap), table.slot_count);
  return has_slot && IsBelow(gpu::ReadOnly(table.indices + tap), table.sources);
}

// Whether a row of the table has taps. A whole warp asks.
KNNCONV_DEVICE bool WarpHasTaps(const gpu::NeighborTable& table, int32_t row) {
  const int64_t first = int64_t{row} * table.neighbours;
  bool has = false;
  for (int tap = threadIdx.x % 32; tap < table.neighbours; tap += 32) has |= IsTap(table, first + tap);
  return __any_sync(0xffffffff, has);
}

// Whether a row of g, counted over all batch entries of a list that starts at `start`, has taps.
template <bool kGathers>
KNNCONV_DEVICE bool HasTaps(const DweightTask& task, const GatherGroups::Reads& start, int64_t g_row) {
  const gpu::NeighborTable& table = task.table;
  int64_t row = g_row % table.outputs;
  if constexpr (kGathers) row += task.groups.Of(start, static_cast<uint32_t>(g_row / table.outputs)).first_row;
  const int64_t first = row * table.neighbours;
#pragma unroll 1
  for (int tap = 0; tap < table.neighbours; ++tap) {
    if (IsTap(table, first + tap)) return true;
  }
  return false;
}

// Sums boxes. All row tiles see each step's box of g. They take turns, chunk by chunk of its lines, so that none waits
// for it. A thread has four columns and kLines lines of a chunk.
template <typename T, typename Tile>
class DweightBoxBias {
  static constexpr int kQuads = Tile::kColumns / 4, kParts = BiasParts(Tile::kColumns), kLines = 16;
  static constexpr int kChunks = kStep / (kLines * kParts);  // of a step

 public:
  KNNCONV_DEVICE DweightBoxBias(const DweightTask& task, int thread) : task_(task), thread_(thread) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    const int turns = task_.schedule.row_tiles;
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      float4 total = {0, 0, 0, 0};
      DweightRows rows(task_.schedule, segment);
      for (int left = segment.steps; left > 0; --left) {
        // Chunk c of row r is of row tile (r * kChunks + c) % turns.
        const int ahead = segment.row_tile - rows.row() % turns * kChunks % turns;
        int chunk = ahead < 0 ? ahead + turns : ahead;
        if (chunk < kChunks && task_.table.zero_empty_rows && !WarpHasTaps(task_.table, rows.row())) chunk = kChunks;
        ring.full[place_.stage].Wait(place_.parity);
        for (; chunk < kChunks; chunk += turns) {
          AddLines(ring.ColumnBox(place_.stage, 0) + chunk * kLines * kParts * kLineBytes, &total);
        }
        __syncwarp();
        if (thread_ % 32 == 0) ring.empty[place_.stage].Arrive();
        rows.Advance();
        place_.Advance();
      }
      float4* const out = reinterpret_cast<float4*>(task_.bias_partials) + int64_t{segment.part} * (kBiasSums / 4);
      out[thread_] = total;
    }
  }

 private:
  // Of a chunk, whose first line has a number that 8 divides.
  KNNCONV_DEVICE void AddLines(const unsigned char* lines, float4* total) const {
    const int quad = thread_ % kQuads, part = thread_ / kQuads;
    if (part >= kParts) return;
    lines += quad / (kBox / 4) * kBoxBytes + quad % 2 * 8;
    const int chunk = quad % (kBox / 4) / 2;  // of 16 bytes; chunks of a line are swizzled by its number
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int line = part + i * kParts;
      Add(&sum, *reinterpret_cast<const FourOf<T>*>(lines + line * kLineBytes + (chunk ^ line % 8) * 16));
    }
    Add(total, sum);
  }

  const DweightTask& task_;
  const int thread_;
  typename DweightRing<Tile>::Place place_;
};

// Sums the shares of g's rows that one of a block's teams of kBiasWarps has, kBiasSums columns at a time: a thread has
// four of them and every parts-th row.
template <typename T, bool kGathers, int kTeams>
KNNCONV_DEVICE void SumRows(const DweightTask& task, int team, int thread) {
  constexpr int kBatch = 16;  // rows loaded at a time: few threads have to keep memory busy
  const int chunks = static_cast<int>(CeilDiv(task.columns, kBiasSums));
  // Held in registers, these would push the ring's addresses out of them.
  const auto results = [&] { return kGathers ? task.results : 1; };
  const auto shares = [&] { return kGathers ? task.RowShares() : task.schedule.blocks; };
  const int first_unit = blockIdx.x * kTeams + team;
  for (int unit = first_unit; unit < results() * shares() * chunks; unit += gridDim.x * kTeams) {
    const int number = unit / chunks, list = kGathers ? number / shares() : 0;
    const int first = (unit - number * chunks) * kBiasSums;
    const int64_t share = CeilDiv(task.g_rows, shares());
    const int64_t begin = share * (number - list * shares()), end = min(begin + share, task.g_rows);
    GatherGroups::Reads start = {};
    if constexpr (kGathers) start = task.groups.StartOf(list);
    const int columns = min(task.columns - first, kBiasSums), quads = columns / 4, parts = BiasParts(columns);
    const bool exists = thread / quads < parts;
    const T* const g = static_cast<const T*>(task.g) + list * task.g_rows * task.columns + first + thread % quads * 4;
    float4 total = {0, 0, 0, 0};
    for (int64_t row = begin; row < end; row += kBatch * parts) {
      const int64_t first_row = row + thread / quads;
      uint32_t counted = exists ? 0xffffffff : 0;
      if (task.table.zero_empty_rows) {
#pragma unroll 1
        for (int i = 0; i < kBatch && first_row + i * parts < end; ++i) {
          if (!HasTaps<kGathers>(task, start, first_row + i * parts)) counted &= ~(1u << i);
        }
      }
      uint2 four[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = first_row + i * parts;
        four[i] = {0, 0};
        if ((counted >> i & 1) != 0 && at < end) four[i] = *reinterpret_cast<const uint2*>(g + at * task.columns);
      }
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) Add(&sum, reinterpret_cast<const FourOf<T>&>(four[i]));
      Add(&total, sum);
    }
    reinterpret_cast<float4*>(task.bias_partials)[int64_t{unit} * (kBiasSums / 4) + thread] = total;
  }
}

}  // namespace knnconv::hopper
