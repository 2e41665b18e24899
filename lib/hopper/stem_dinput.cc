#include "hopper/stem_dinput.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/stem_dinput_shape.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::kOrderedSources;

bool Plan(const gpu::TapGemm& gemm, const gpu::Device& device, StemDinputPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.source_rows == 0 || gemm.slots == 0;
  if (device.capability != 90 || gemm.kind != gpu::Taps::kSources || !gemm.transposed || empty) return false;
  if (gemm.source_type != gemm.compute_type || !IsAligned(gemm.source) || !IsAligned(gemm.weight)) return false;
  if (gemm.columns != kStemChannels || gemm.slots > kMostStemSlots) return false;
  if (gemm.depth < 1 || gemm.depth > gpu::kMostStemDepth || gemm.depth % 8 != 0) return false;
  const int64_t blocks = CeilDiv(gemm.nodes, kOrderedSources);
  if (blocks > kMostStemBlocks) return false;
  const int loads = gemm.depth > 64 ? 3 : 2;
  // Weights lie where products come later, and at the end sums.
  const int64_t weight_bytes = int64_t{gemm.slots} * gemm.columns * gpu::StemRowPitch(loads);
  const int64_t sum_bytes = blocks * kOrderedSources * gemm.columns * 4;
  // Neighbouring slots' products begin 8 banks apart, or 24. Behind the last row's is one that no row of g gives.
  const auto pitch_of = [](int64_t units) { return units / 2 * 16 + 8; };
  const auto pairs_bytes = [&](int64_t units) { return CeilDiv(gemm.slots * pitch_of(units) * 8 + 8, 16) * 16; };
  const auto lines_bytes = [&](int64_t units) {
    return pairs_bytes(units) + CeilDiv(gemm.slots * pitch_of(units) * 4 + 4, 16) * 16;
  };
  // A row's 16 bytes of the next 8 channels lie 4 banks further on.
  const auto plane_bytes = [](int64_t units) { return CeilDiv(units * 8, kStemRows) * kStemRows * 16 + 16; };
  const auto rows_at = [&](int64_t units) { return std::max({weight_bytes, sum_bytes, lines_bytes(units)}); };
  const auto bytes_of = [&](int64_t units) { return rows_at(units) + loads * 4 * plane_bytes(units); };
  const auto fits = [&](int64_t units) {
    return bytes_of(units) <= device.shared_bytes && gemm.slots * pitch_of(units) * kStemScale < int64_t{1} << 16;
  };
  int64_t units = CeilDiv(gemm.source_rows, 8);
  while (units > 0 && !fits(units)) --units;
  if (units == 0) return false;
  const int64_t stretches = CeilDiv(gemm.source_rows, units * 8), groups = gemm.groups.count();
  if (stretches > gpu::kMostStretches || groups * std::max(gemm.batch, blocks) > INT32_MAX) return false;
  const int64_t stretch = CeilDiv(gemm.source_rows, stretches);
  units = CeilDiv(stretch, 8);
  if (units * 8 * CeilDiv(gemm.table.taps, gemm.source_rows) > int64_t{4} << 16) return false;  // quads of a list
  const int64_t lists = groups * stretches * blocks * (kOrderedSources / 2);
  const int64_t group_quads = StemDinputPlan::BlockQuads(gemm.table.taps);
  const int64_t order_bytes = lists * 24 + groups * group_quads * 8;
  if (gemm.table.taps > INT32_MAX || lists > INT32_MAX || groups * group_quads > INT32_MAX) return false;
  if (gemm.workspace_bytes < order_bytes || !IsAligned(gemm.workspace)) return false;

  *plan = {};
  plan->stretches = static_cast<int32_t>(stretches);
  plan->stretch = static_cast<int32_t>(stretch);
  plan->pitch = static_cast<int32_t>(pitch_of(units));
  plan->row_step = kStemScale;
  plan->slot_step = plan->pitch * kStemScale;
  plan->nowhere = gemm.slots * plan->slot_step;
  plan->blocks = static_cast<int32_t>(blocks);
  plan->singles_at = static_cast<int32_t>(pairs_bytes(units));
  plan->rows_at = static_cast<int32_t>(rows_at(units));
  plan->bytes = static_cast<int32_t>(bytes_of(units));
  plan->plane_bytes = static_cast<int32_t>(plane_bytes(units));
  plan->sets = static_cast<int32_t>(CeilDiv(gemm.slots, kStemSlots));
  plan->by_stretch = gpu::Divisor(static_cast<uint32_t>(plan->stretch));
  plan->firsts = static_cast<uint4*>(gemm.workspace);
  plan->rests = reinterpret_cast<uint2*>(plan->firsts + lists);
  plan->quads = plan->rests + lists;
  plan->group_quads = group_quads;
  return true;
}

}  // namespace

bool ChooseStem(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, StemDinputPlan* plan) {
  // Products without a tap are in vain.
  if (!forced && (gemm.slots < 9 || gemm.source_rows < 128)) return false;
  if (!forced && gemm.table.taps * 4 < gemm.source_rows * gemm.slots) return false;
  if (!Plan(gemm, device, plan)) return false;
  // A block has a multiprocessor to itself, and every stretch goes through all sources.
  return forced || (gemm.table.taps >= plan->stretches * gemm.nodes &&
                    gemm.groups.count() * gemm.batch * 4 >= device.multiprocessors);
}

}  // namespace knnconv::hopper
