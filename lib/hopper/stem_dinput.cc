#include "hopper/stem_dinput.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/stem_dinput_shape.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv;

bool Plan(const gpu::TapGemm& gemm, const gpu::Device& device, StemDinputPlan* plan) {
  if (device.capability != 90 || !gpu::IsStemDinput(gemm)) return false;
  if (gemm.columns != kStemChannels || gemm.slots > kMostStemSlots || gemm.nodes > kMostStemNodes) return false;
  const int loads = gemm.depth > 64 ? 3 : 2;
  // Weights lie where products come later, and at the end sums.
  const int64_t weight_bytes = int64_t{gemm.slots} * gemm.columns * gpu::StemRowPitch(loads);
  const int64_t sum_bytes = CeilDiv(gemm.nodes, gpu::kOrderedSources) * gpu::kOrderedSources * gemm.columns * 4;
  // Neighbouring slots' products begin 8 banks apart, or 24. Behind the last row's is one that no row of g gives.
  const auto pitch_of = [](int64_t units) { return units / 2 * 16 + 8; };
  const auto line_bytes = [&](int64_t units, int width) {
    return CeilDiv(gemm.slots * pitch_of(units) * width + width, 16) * 16;
  };
  const auto rows_at = [&](int64_t units) {
    return std::max({weight_bytes, sum_bytes, line_bytes(units, 8) + line_bytes(units, 4)});
  };
  // The same row's next 8 channels lie 4 banks further on.
  const auto plane_bytes = [](int64_t units) { return CeilDiv(units * 8, kStemRows) * kStemRows * 16 + 16; };
  const auto bytes_of = [&](int64_t units) { return rows_at(units) + loads * 4 * plane_bytes(units); };
  const auto fits = [&](int64_t units) {
    return bytes_of(units) <= device.shared_bytes && gemm.slots * pitch_of(units) * kStemScale < int64_t{1} << 16;
  };
  const int64_t stretch = gpu::StretchRows(gemm.source_rows, fits), units = CeilDiv(stretch, 8);
  if (stretch == 0) return false;
  *plan = {};
  if (!gpu::LayOutOrder(gemm, stretch, plan)) return false;
  if (gemm.groups.count() * plan->stretches * plan->blocks * gpu::kOrderedSources > INT32_MAX) return false;
  plan->pitch = static_cast<int32_t>(pitch_of(units));
  plan->row_step = kStemScale;
  plan->slot_step = plan->pitch * kStemScale;
  plan->nowhere = gemm.slots * plan->slot_step;
  plan->singles_at = static_cast<int32_t>(line_bytes(units, 8));
  plan->rows_at = static_cast<int32_t>(rows_at(units));
  plan->plane_bytes = static_cast<int32_t>(plane_bytes(units));
  plan->bytes = static_cast<int32_t>(bytes_of(units));
  plan->sets = static_cast<int32_t>(CeilDiv(gemm.slots, kStemSlots));
  return true;
}

}  // namespace

bool ChooseStem(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, StemDinputPlan* plan) {
  return Plan(gemm, device, plan) && (forced || gpu::PaysAsStem(gemm, device, *plan));
}

}  // namespace knnconv::hopper
