// The warps of a weight gradient's thread block that sum the bias gradient from the boxes of g that are there anyway.
//
//     db[o] = sum over rows:  g[row, o]
#pragma once

#include <cstdint>

#include "gpu/elements.h"
#include "hopper/dweight_task.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// The two warps that sum g's columns. Row tiles take turns, row by row, so that none waits for it. A thread has four
// columns and every kParts-th position.
template <typename T, typename Tile>
class DweightBias {
  static constexpr int kQuads = Tile::kColumns / 4, kParts = BiasParts(Tile::kColumns);
  struct alignas(8) Four {
    T value[4];
  };

 public:
  static constexpr int kWarps = 2;

  KNNCONV_DEVICE DweightBias(const DweightTask& task, int thread) : task_(task), thread_(thread) {}

  KNNCONV_DEVICE void Run(const DweightRing<Tile>& ring) {
    for (DweightWalk walk(task_.schedule, blockIdx.x); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      const bool sums = task_.kind != TapsKind::kSlots || segment.list == task_.schedule.lists;
      const int turns = task_.kind != TapsKind::kSlots ? task_.schedule.row_tiles : 1;
      float4 total = {0, 0, 0, 0};
      DweightRows rows(task_.schedule, segment);
      for (int left = segment.steps; left > 0; --left) {
        ring.full[place_.stage].Wait(place_.parity);
        if (sums && rows.row() % turns == segment.row_tile % turns && IsCounted(rows.row())) {
          Add(ring.ColumnBoxes(place_.stage), &total);
        }
        __syncwarp();
        if (thread_ % 32 == 0) ring.empty[place_.stage].Arrive();
        rows.Advance();
        place_.Advance();
      }
      float4* const out = reinterpret_cast<float4*>(task_.bias_partials) + int64_t{segment.part} * (kBiasSums / 4);
      if (sums) out[thread_] = total;
    }
  }

 private:
  // Whether a row of g adds to db.
  KNNCONV_DEVICE bool IsCounted(int row) const {
    const gpu::NeighborTable& table = task_.table;
    if (!table.zero_empty_rows) return true;
    const int64_t first = int64_t{row} * table.neighbours;
    bool counted = false;
    for (int tap = thread_ % 32; tap < table.neighbours; tap += 32) {
      const bool has_slot = table.slots == nullptr || static_cast<uint32_t>(__ldg(table.slots + first + tap)) <
                                                          static_cast<uint32_t>(table.slot_count);
      const bool has_source =
          static_cast<uint32_t>(__ldg(table.indices + first + tap)) < static_cast<uint32_t>(table.sources);
      counted |= has_slot && has_source;
    }
    return __any_sync(0xffffffff, counted);
  }

  KNNCONV_DEVICE void Add(const unsigned char* boxes, float4* total) const {
    const int quad = thread_ % kQuads, part = thread_ / kQuads;
    if (part >= kParts) return;
    boxes += quad / (kBox / 4) * kBoxBytes + quad % 2 * 8;
    const int chunk = quad % (kBox / 4) / 2;  // of 16 bytes; chunks of a line are swizzled by its number
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int line = part; line < kStep; line += kParts) {
      const Four four = *reinterpret_cast<const Four*>(boxes + line * 128 + (chunk ^ line % 8) * 16);
      sum.x += gpu::ToFloat(four.value[0]);
      sum.y += gpu::ToFloat(four.value[1]);
      sum.z += gpu::ToFloat(four.value[2]);
      sum.w += gpu::ToFloat(four.value[3]);
    }
    total->x += sum.x;
    total->y += sum.y;
    total->z += sum.z;
    total->w += sum.w;
  }

  const DweightTask& task_;
  const int thread_;
  typename DweightRing<Tile>::Place place_;
};

}  // namespace knnconv::hopper
