#include "gpu/stem_dinput.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/stem_dinput_tile.h"

namespace knnconv::gpu {
namespace {

bool Plan(const TapGemm& gemm, const Device& device, StemDinputPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.source_rows == 0 || gemm.slots == 0;
  if (gemm.kind != Taps::kSources || !gemm.transposed || empty) return false;
  if (gemm.source_type != gemm.compute_type || !IsAligned(gemm.source) || !IsAligned(gemm.weight)) return false;
  if (gemm.columns < 1 || gemm.columns > kStemChannels) return false;
  if (gemm.depth < 1 || gemm.depth > kMostStemDepth || gemm.depth % 8 != 0) return false;
  const StemTiles tiles = StemTilesOf(gemm.columns);
  // Neighbouring slots' products begin 8 banks apart, or 24, and have room for one that no row of g gives.
  const int64_t units = CeilDiv(gemm.source_rows, 8), pitch = (units + 1) / 2 * 16 + 8;
  const int64_t blocks = CeilDiv(gemm.nodes, kOrderedSources);
  const int64_t slot_bytes = pitch * gemm.columns * 4, sum_bytes = blocks * kOrderedSources * gemm.columns * 4;
  const int64_t room = device.shared_bytes - sum_bytes - kStemWeightBytes;
  const int64_t slot_step = pitch * std::max(1, tiles.pairs), places = int64_t{1} << 16;
  const int64_t most = std::min({room / slot_bytes, int64_t{tiles.slots}, places / slot_step});
  if (most < 1) return false;
  const int64_t stretches = CeilDiv(gemm.slots, most), groups = gemm.groups.count();
  if (stretches > kMostStretches || groups * std::max(gemm.batch, blocks) > INT32_MAX) return false;
  const int64_t block_ends = kFirstEnd + stretches * kOrderedSources, ends = groups * blocks * block_ends;
  const int64_t group_pairs = (gemm.table.taps + blocks * stretches * kOrderedSources + 1) / 2;
  if (gemm.table.taps > INT32_MAX || gemm.workspace_bytes < (ends + groups * group_pairs) * 4) return false;
  if (!IsAligned(gemm.workspace)) return false;

  *plan = {};
  plan->stretches = static_cast<int32_t>(stretches);
  plan->stretch = static_cast<int32_t>(CeilDiv(gemm.slots, stretches));
  plan->pitch = static_cast<int32_t>(pitch);
  plan->slot_step = static_cast<int32_t>(slot_step);
  plan->units = static_cast<int32_t>(units);
  plan->nowhere = static_cast<int32_t>(units * 8);
  plan->blocks = static_cast<int32_t>(blocks);
  plan->singles_at = static_cast<int32_t>(plan->stretch * tiles.pairs * pitch * 8);
  plan->sums_at = static_cast<int32_t>(plan->stretch * slot_bytes);
  plan->weights_at = static_cast<int32_t>(plan->sums_at + sum_bytes);
  plan->bytes = plan->weights_at + kStemWeightBytes;
  plan->by_stretch = Divisor(static_cast<uint32_t>(plan->stretch));
  plan->block_ends = static_cast<int32_t>(block_ends);
  plan->ends = static_cast<uint32_t*>(gemm.workspace);
  plan->pairs = plan->ends + ends;
  plan->group_pairs = group_pairs;
  return true;
}

}  // namespace

bool ChooseStem(const TapGemm& gemm, const Device& device, bool forced, StemDinputPlan* plan) {
  // Products without a tap are in vain.
  if (!forced && (gemm.slots < 9 || gemm.source_rows < 128)) return false;
  if (!forced && gemm.table.taps * 4 < gemm.source_rows * gemm.slots) return false;
  if (!Plan(gemm, device, plan)) return false;
  // Every stretch reads all of g; a block has a multiprocessor to itself.
  constexpr int kFewSlots = 5;
  return forced || (plan->stretch >= kFewSlots && gemm.groups.count() * gemm.batch * 4 >= device.multiprocessors);
}

}  // namespace knnconv::gpu
