#include "gpu/stem_dweight.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dweight_plan.h"
#include "gpu/stem.h"

namespace knnconv::gpu {
namespace {

constexpr int kMostStemSamples = 2;  // of a block: of more, g would be read more often
// A warp takes 0.05 us for a row of g on an H200. In that time: a block's start and end, staging of a sample, and
// partial sums that are written and read again.
constexpr int kBlockRows = 80, kSampleRows = 70;
constexpr int64_t kPartialsOfARow = 25000;

bool Plan(const Dweight& dweight, const ColumnTaps& taps, const Device& device, StemDweightPlan* plan) {
  const NeighborTable& table = taps.table;
  const bool empty = dweight.batch == 0 || table.outputs == 0 || table.sources == 0 || dweight.slots == 0;
  if (empty || dweight.shapes.members.count() != 1) return false;
  if (dweight.channels < 1 || dweight.channels > kStemChannels) return false;
  if (dweight.columns == 0 || dweight.columns % 8 != 0) return false;
  if (!IsAligned(dweight.g) || !IsAligned(dweight.partials)) return false;
  if (dweight.db != nullptr && table.zero_empty_rows) return false;  // it counts all rows
  if (table.outputs > kChainPositions) return false;  // a sample's products lie in one chain (dweight_plan.h)

  const int tiles = StemDweightTiles(dweight.channels, dweight.columns);
  const int64_t groups = dweight.shapes.groups.count(), column_tiles = CeilDiv(dweight.columns, tiles * 16);
  const int64_t slots = int64_t{dweight.slots} + (dweight.db != nullptr ? 1 : 0);
  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  const int64_t sample_bytes = CeilDiv(int64_t{table.sources} * kStemChannels * 2, 16) * 16;
  const int64_t stage_bytes = kStemPositions * StemCotangentPitch(tiles * 16);
  const int64_t sum_bytes = tiles * 16 * kStemSlots * StemDweightChannels(dweight.channels) * 4;

  // Blocks of fewer slots and more samples leave fewer partial sums. The least estimated time, in rows of a warp.
  int64_t least = INT64_MAX;
  for (int slot_warps = kStemDweightWarps; slot_warps >= 4; slot_warps /= 2) {
    const int64_t row_tiles = CeilDiv(slots, slot_warps * kStemSlots), ways = kStemDweightWarps / slot_warps;
    for (int samples = 1; samples <= std::min<int64_t>(ways, kMostStemSamples); samples *= 2) {
      const int64_t slices = CeilDiv(dweight.batch, samples), blocks = groups * row_tiles * column_tiles * slices;
      const int64_t bytes = std::max(kStemSourceAt + samples * (sample_bytes + 2 * stage_bytes),
                                     ways > 1 ? kStemDweightWarps / 2 * sum_bytes : 0);
      if (blocks > INT32_MAX || bytes > device.shared_bytes) continue;
      if (groups * slices * (weight + dweight.columns) > dweight.partial_elements) continue;
      const int64_t rows = CeilDiv(CeilDiv(table.outputs, 16), ways / samples) * 16;
      const int64_t cost =
          CeilDiv(blocks, device.multiprocessors) * (rows + kBlockRows + samples * kSampleRows) +
          groups * slices * weight / kPartialsOfARow;
      if (cost >= least) continue;
      least = cost;
      *plan = {};
      plan->row_tiles = static_cast<uint32_t>(row_tiles);
      plan->slot_warps = slot_warps;
      plan->samples = samples;
      plan->step_ways = static_cast<int32_t>(ways / samples);
      plan->slices = static_cast<uint32_t>(slices);
      plan->bytes = static_cast<int32_t>(bytes);
    }
  }
  if (least == INT64_MAX) return false;
  plan->column_tiles = static_cast<uint32_t>(column_tiles);
  plan->sample_bytes = static_cast<int32_t>(sample_bytes);
  plan->source_at = kStemSourceAt;
  plan->stage_at = static_cast<int32_t>(kStemSourceAt + plan->samples * sample_bytes);
  plan->stage_bytes = static_cast<int32_t>(plan->samples * stage_bytes);
  plan->bias_partials = dweight.db != nullptr ? dweight.partials + groups * plan->slices * weight : nullptr;
  return true;
}

}  // namespace

bool ChooseStem(const Dweight& dweight, const ColumnTaps& taps, const Device& device, bool forced,
                StemDweightPlan* plan) {
  if (!forced && (dweight.slots < 9 || taps.table.outputs < 128)) return false;
  return Plan(dweight, taps, device, plan) &&
         (forced || int64_t{plan->slices} * plan->row_tiles * plan->column_tiles * 2 >= device.multiprocessors);
}

}  // namespace knnconv::gpu
