#include "gpu/stem_dinput.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/stem_dinput_tile.h"

namespace knnconv::gpu {
namespace {

bool Plan(const TapGemm& gemm, const Device& device, StemDinputPlan* plan) {
  if (!IsStemDinput(gemm)) return false;
  const StemTiles tiles = StemTilesOf(gemm.columns);
  const int64_t blocks = CeilDiv(gemm.nodes, kOrderedSources), parts = CeilDiv(gemm.slots, tiles.slots);
  const int64_t sum_bytes = blocks * kOrderedSources * gemm.columns * 4;
  if (parts > kStemDinputWarps) return false;
  const int row_pitch = StemRowPitch(gemm.depth > 64 ? 3 : 2);
  // Weights lie where products and sums come later.
  const int64_t weight_bytes = int64_t{gemm.slots} * gemm.columns * row_pitch;
  // Neighbouring slots' products begin 8 banks apart, or 24. Behind the last row's is one that no row of g gives.
  const auto pitch_of = [](int64_t units) { return units / 2 * 16 + 8; };
  const auto pairs_bytes = [&](int64_t units) {
    return tiles.pairs == 0 ? 0 : CeilDiv(((gemm.slots + 1) * tiles.pairs - 1) * pitch_of(units) * 8 + 8, 16) * 16;
  };
  const auto lines_bytes = [&](int64_t units) {
    const int64_t singles = tiles.singles == 0 ? 0 : CeilDiv(gemm.slots * pitch_of(units) * 4 + 4, 16) * 16;
    return pairs_bytes(units) + singles;
  };
  const auto fits = [&](int64_t units) {
    const int64_t bytes = std::max(weight_bytes, lines_bytes(units) + sum_bytes) + units * 8 * row_pitch;
    return bytes <= device.shared_bytes &&
           gemm.slots * pitch_of(units) * std::max(1, tiles.pairs) * tiles.scale < int64_t{1} << 16;
  };
  const int64_t units = CeilDiv(StretchRows(gemm.source_rows, fits), 8);
  if (units == 0) return false;
  *plan = {};
  if (!LayOutOrder(gemm, units * 8, plan)) return false;
  plan->pitch = static_cast<int32_t>(pitch_of(units));
  plan->row_step = tiles.scale;
  plan->slot_step = plan->pitch * std::max(1, tiles.pairs) * tiles.scale;
  plan->slot_warps = static_cast<int32_t>(parts);
  plan->row_ways = kStemDinputWarps / plan->slot_warps;
  plan->nowhere = gemm.slots * plan->slot_step;
  plan->singles_at = static_cast<int32_t>(pairs_bytes(units));
  plan->sums_at = static_cast<int32_t>(lines_bytes(units));
  plan->rows_at = static_cast<int32_t>(std::max(weight_bytes, plan->sums_at + sum_bytes));
  plan->bytes = static_cast<int32_t>(plan->rows_at + units * 8 * row_pitch);
  return true;
}

}  // namespace

bool IsStemDinput(const TapGemm& gemm) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.source_rows == 0 || gemm.slots == 0;
  if (gemm.kind != Taps::kSources || !gemm.transposed || empty) return false;
  if (gemm.source_type != gemm.compute_type || !IsAligned(gemm.source) || !IsAligned(gemm.weight)) return false;
  if (gemm.columns < 1 || gemm.columns > kStemChannels) return false;
  return gemm.depth >= 1 && gemm.depth <= kMostStemDepth && gemm.depth % 8 == 0;
}

bool LayOutOrder(const TapGemm& gemm, int64_t stretch, StemDinputPlan* plan) {
  const int64_t stretches = CeilDiv(gemm.source_rows, stretch), blocks = CeilDiv(gemm.nodes, kOrderedSources);
  const int64_t groups = gemm.groups.count();
  if (stretches > kMostStretches || groups * std::max(gemm.batch, blocks) > INT32_MAX) return false;
  if (stretch * CeilDiv(gemm.table.taps, gemm.source_rows) > int64_t{4} << 16) return false;  // quads of a list
  const int64_t lists = groups * stretches * blocks * (kOrderedSources / 2);
  const int64_t group_quads = StemDinputPlan::BlockQuads(gemm.table.taps);
  const int64_t order_bytes = lists * 24 + groups * group_quads * 8;
  if (gemm.table.taps > INT32_MAX || groups * group_quads > INT32_MAX) return false;
  if (gemm.workspace_bytes < order_bytes || !IsAligned(gemm.workspace)) return false;
  plan->stretches = static_cast<int32_t>(stretches);
  plan->stretch = static_cast<int32_t>(stretch);
  plan->blocks = static_cast<int32_t>(blocks);
  plan->by_stretch = Divisor(static_cast<uint32_t>(stretch));
  plan->firsts = static_cast<uint4*>(gemm.workspace);
  plan->rests = reinterpret_cast<uint2*>(plan->firsts + lists);
  plan->quads = plan->rests + lists;
  plan->group_quads = group_quads;
  return true;
}

bool PaysAsStem(const TapGemm& gemm, const Device& device, const StemDinputPlan& plan) {
  // Products without a tap are in vain.
  if (gemm.slots < 9 || gemm.source_rows < 128 || gemm.table.taps * 4 < gemm.source_rows * gemm.slots) return false;
  // A block has a multiprocessor to itself, and every stretch goes through all sources.
  return gemm.table.taps >= plan.stretches * gemm.nodes &&
         gemm.groups.count() * gemm.batch * 4 >= device.multiprocessors;
}

bool ChooseStem(const TapGemm& gemm, const Device& device, bool forced, StemDinputPlan* plan) {
  return Plan(gemm, device, plan) && (forced || PaysAsStem(gemm, device, *plan));
}

}  // namespace knnconv::gpu
