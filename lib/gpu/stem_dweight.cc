#include "gpu/stem_dweight.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dweight_plan.h"
#include "gpu/stem.h"

namespace knnconv::gpu {
namespace {

bool Plan(const Dweight& dweight, const ColumnTaps& taps, const Device& device, StemDweightPlan* plan) {
  const NeighborTable& table = taps.table;
  const bool empty = dweight.batch == 0 || table.outputs == 0 || table.sources == 0 || dweight.slots == 0;
  if (empty || dweight.shapes.members.count() != 1) return false;
  if (dweight.channels < 1 || dweight.channels > kStemChannels) return false;
  if (dweight.columns == 0 || dweight.columns % 8 != 0) return false;
  if (!IsAligned(dweight.g) || !IsAligned(dweight.partials)) return false;
  if (dweight.db != nullptr && table.zero_empty_rows) return false;  // it counts all rows
  *plan = {};
  const int products = StemProducts(dweight.columns);
  const int64_t groups = dweight.shapes.groups.count();
  const int64_t row_tiles = CeilDiv(dweight.slots, kStemWarps * StemUnits(products) * 2);
  const int64_t column_tiles = CeilDiv(dweight.columns, products * 8), tiles = groups * row_tiles * column_tiles;
  if (tiles > INT32_MAX) return false;

  // A slice's products lie in one chain (dweight_plan.h), and two samples in a slice share what is read of the table.
  // One block runs on a multiprocessor at a time: as many samples as leave the fewest one behind the other.
  if (table.outputs > kChainPositions) return false;
  const int64_t pitch = products * 16 + 16, sample_bytes = int64_t{table.sources} * 16;
  const auto bytes_of = [&](int64_t samples) { return 16 + samples * (sample_bytes + 2 * kStemPositions * pitch); };
  const auto rounds_of = [&](int64_t samples) {
    return samples * CeilDiv(tiles * CeilDiv(dweight.batch, samples), device.multiprocessors);
  };
  const bool two = table.outputs * int64_t{2} <= kChainPositions && bytes_of(2) <= device.shared_bytes &&
                   rounds_of(2) <= rounds_of(1);
  plan->samples = two ? 2 : 1;
  const int64_t bytes = bytes_of(plan->samples);
  if (bytes > device.shared_bytes) return false;
  plan->row_tiles = static_cast<uint32_t>(row_tiles);
  plan->column_tiles = static_cast<uint32_t>(column_tiles);
  plan->slices = static_cast<uint32_t>(CeilDiv(dweight.batch, plan->samples));
  plan->sample_bytes = static_cast<int32_t>(sample_bytes);
  plan->cotangent_pitch = static_cast<int32_t>(pitch);
  plan->cotangent_bytes = static_cast<int32_t>(kStemPositions * pitch);
  plan->source_at = 16;
  plan->stage_at = static_cast<int32_t>(16 + plan->samples * sample_bytes);
  plan->stage_bytes = plan->samples * plan->cotangent_bytes;
  plan->bytes = static_cast<int32_t>(bytes);
  plan->by_depth = Divisor(static_cast<uint32_t>(dweight.channels));

  const int64_t weight = int64_t{dweight.slots} * dweight.channels * dweight.columns;
  if (groups * plan->slices * (weight + dweight.columns) > dweight.partial_elements) return false;
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
