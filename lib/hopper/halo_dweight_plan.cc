#include "hopper/halo_dweight_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "gpu/dweight_plan.h"
#include "gpu/halo_dweight_plan.h"
#include "hopper/device.h"
#include "hopper/dweight_chain.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::DenseTaps, gpu::Dweight, gpu::IsAligned;

constexpr int kStepPixels = 16, kAlignment = 1024;
// Products have 64 columns of g: where its lines are shorter, they read three pieces of 16 bytes behind a tile.
constexpr int kReadBehind = 48;
constexpr int kUnitBytes = kTeamThreads * 16;  // of a team

int32_t Rounded(int64_t bytes) { return static_cast<int32_t>(CeilDiv(bytes, kAlignment) * kAlignment); }

// What the copy engine demands of g.
bool SuitsCotangent(const Dweight& dweight) {
  return dweight.columns % 8 == 0 && IsAligned(dweight.g) && IsAligned(dweight.partials) &&
         dweight.shapes.groups.count() == 1 && dweight.shapes.members.count() == 1;
}

// And of x; and tiles that an image fills: then what no tap reads meets no product.
bool SuitsHalo(const Dweight& dweight, const DenseTaps& taps, int height, int width) {
  constexpr int kMostChannels = 64;
  return dweight.x_type == dweight.g_type && dweight.channels % 8 == 0 && dweight.channels <= kMostChannels &&
         IsAligned(dweight.x) && taps.stride[1] == 1 && taps.out_size[0] % height == 0 &&
         taps.out_size[1] % width == 0;
}

// Of x, threads read what they need, whatever its type. Places in an image have 31 bits.
bool SuitsPatches(const Dweight& dweight, const DenseTaps& taps) {
  const int64_t elements = int64_t{taps.in_size[0]} * taps.in_size[1] * dweight.channels;
  return dweight.channels <= gpu::kMostQuadChannels && dweight.slots <= kPatchTaps && elements <= INT32_MAX;
}

bool HoldsTaps(const PairGroups& groups, const gpu::WindowTaps& window) {
  return window.kernel[0] <= groups.taps_down && window.kernel[1] <= 2 * groups.groups;
}

// Tiles that an image fills, and pairs that are neighbours; of up to 3 channels, since the fourth is what db needs.
bool SuitsPairs(const Dweight& dweight, const DenseTaps& taps, const gpu::TapGemm& forward, int height, int width) {
  return dweight.channels < gpu::kMostQuadChannels && taps.stride[1] <= 2 && taps.dilation[1] == 1 &&
         HoldsTaps(kManyPairs, forward.window) && taps.out_size[0] % height == 0 && taps.out_size[1] % width == 0;
}

bool LayOut(const Dweight& dweight, const gpu::TapGemm& forward, HaloDweightPlan* plan) {
  const gpu::WindowTaps& window = forward.window;
  plan->pixel_bytes = LineBytes(dweight.channels);
  plan->tap_elements_log2 = plan->pixel_bytes == 32 ? 4 : plan->pixel_bytes == 64 ? 5 : 6;
  const bool wide = IsWide(*plan);
  const int32_t rows = wide ? kWideRows : kGroupRows, groups_of_kind = wide ? 1 : kDweightGroups;
  plan->halo_line = plan->halo[1] * plan->pixel_bytes;
  for (int d = 0; d < 2; ++d) plan->origin[d] = -window.padding[d];
  plan->taps_of_group = rows >> plan->tap_elements_log2;
  plan->pieces = static_cast<int32_t>(CeilDiv(window.kernel[0], plan->taps_of_group));
  const int32_t groups = window.kernel[1] * plan->pieces;
  if (!wide && groups > kDweightGroups) return false;
  plan->kinds = static_cast<uint32_t>(wide ? groups : 1);
  const int32_t lines_of_step = kStepPixels / plan->tile[1], row_pitch = plan->step[0] * plan->halo_line;
  plan->step_pitch = lines_of_step * row_pitch;
  plan->half_pitch = lines_of_step == 1 ? kStepPixels / 2 * plan->pixel_bytes : row_pitch;
  plan->tap_pitch = window.dilation[0] * plan->halo_line;
  plan->group_units = rows / 8;
  plan->groups_of_kind = groups_of_kind;
  const int32_t weight_units = std::min(groups, groups_of_kind) * plan->group_units;
  plan->units = weight_units + 1;
  plan->weight_rows = plan->bias_row = weight_units * 8;
  plan->taps_down = window.kernel[0];
  plan->taps_across = window.kernel[1];
  return plan->halo[0] <= kMostBox && plan->halo[1] <= kMostBox;
}

void LayOutPatches(const Dweight& dweight, HaloDweightPlan* plan) {
  plan->tap_elements_log2 = 2;
  plan->taps_of_group = kPatchTaps;
  plan->pieces = 1;
  plan->kinds = 1;
  plan->groups_of_kind = 1;
  plan->group_units = kPatchRows / 8;
  plan->weight_rows = plan->bias_row = kPatchTaps * gpu::kMostQuadChannels;
  plan->units = plan->bias_row / 8 + 1;
  plan->taps_down = dweight.slots;
  plan->taps_across = 1;
}

// Bytes of a team besides its stages.
int64_t LayOutPairs(const gpu::TapGemm& forward, const PairGroups& groups, HaloDweightPlan* plan) {
  constexpr int kBoxAlignment = 128;
  const gpu::WindowTaps& window = forward.window;
  plan->halo_line = plan->pair_lines.pitch;
  for (int d = 0; d < 2; ++d) plan->origin[d] = -window.padding[d];
  // Products read lines of taps that dw lacks, too.
  const int64_t lines = int64_t{plan->tile[0] - 1} * plan->step[0] + (groups.taps_down - 1) * window.dilation[0] + 1;
  const auto rounded = [](int64_t bytes) {
    return static_cast<int32_t>(CeilDiv(bytes, kBoxAlignment) * kBoxAlignment);
  };
  plan->pair_bytes = rounded(lines * plan->halo_line);
  plan->raw_room = rounded(plan->halo[0] * plan->pair_lines.raw_pitch);
  const int32_t lines_of_step = kStepPixels / plan->tile[1], row_pitch = plan->step[0] * plan->halo_line;
  plan->step_pitch = lines_of_step * row_pitch;
  plan->half_pitch = lines_of_step == 1 ? kStepPixels / 2 * 16 : row_pitch;
  plan->tap_pitch = window.dilation[0] * plan->halo_line;
  plan->tap_elements_log2 = 2;
  plan->taps_beside_log2 = 1;
  plan->taps_of_group = groups.taps_down;
  plan->pieces = 1;
  plan->kinds = 1;
  plan->groups_of_kind = groups.groups;
  plan->group_units = groups.taps_down;
  plan->units = groups.groups * plan->group_units;
  plan->weight_rows = plan->units * 8;
  plan->bias_row = gpu::kMostQuadChannels - 1;
  plan->taps_down = window.kernel[0];
  plan->taps_across = window.kernel[1];
  return int64_t{kPairStages} * (plan->pair_bytes + plan->raw_room);
}

// Stages of `stage_bytes` behind `fixed_bytes`, as many as there is room for; what products read from the last one's
// start on; and what sums need once stages are used up. False where two stages are too many.
bool PlanStages(int64_t fixed_bytes, int64_t read_bytes, int64_t sum_bytes, int64_t limit, HaloDweightPlan* plan) {
  for (plan->stages = kDweightStages; plan->stages > 1; --plan->stages) {
    const int64_t all = fixed_bytes + int64_t{kDweightTeams} * plan->stages * plan->stage_bytes;
    const int64_t last = std::max<int64_t>(plan->stage_bytes, read_bytes);
    const int64_t bytes = kAlignment + kReadBehind + std::max<int64_t>(all - plan->stage_bytes + last, sum_bytes);
    plan->bytes = static_cast<int32_t>(bytes);
    if (bytes + kDweightBarrierBytes <= limit) return true;
  }
  return false;
}

// Slices fill the device once, with so many `blocks`, as far as there is room, or are as many as keep chains within
// `chain` positions.
bool PlanSlices(const Dweight& dweight, int64_t blocks, int64_t chain, HaloDweightPlan* plan) {
  plan->part_threads = static_cast<int32_t>(CeilDiv(std::min(dweight.columns, kDweightColumns), 16)) * 32;
  const int64_t all_tiles = plan->all_tiles;
  const int64_t tiles = int64_t{plan->column_tiles} * plan->kinds;  // of dw
  const int64_t weight = tiles * plan->units * plan->part_threads * 4;
  const int64_t room = dweight.partial_elements / weight;
  const int64_t least = CeilDiv(all_tiles, kDweightTeams * (chain / kDweightPixels));
  const int64_t most = std::min<int64_t>({room, blocks / tiles, CeilDiv(all_tiles, kDweightTeams)});
  const int64_t slices = std::max<int64_t>({least, most, 1});
  if (slices > room || tiles * slices > INT32_MAX) return false;
  plan->slices = static_cast<uint32_t>(slices);
  return true;
}

// False where the problem does not suit these kernels, or not fit.
bool Plan(const Dweight& dweight, const DenseTaps& taps, const gpu::TapGemm& forward, int multiprocessors,
          int shared_limit, HaloDweightPlan* plan) {
  const int width = taps.out_size[1] % kStepPixels == 0 ? kStepPixels : kStepPixels / 2;
  const int height = kDweightPixels / width;
  const bool quads = dweight.channels <= gpu::kMostQuadChannels;
  if (!SuitsCotangent(dweight) || !gpu::PlanTiles(forward, quads, kTeamThreads, height, width, plan)) return false;
  plan->column_tiles = static_cast<uint32_t>(CeilDiv(dweight.columns, kDweightColumns));
  plan->cotangent_bytes = LineBytes(std::min(dweight.columns, kDweightColumns));
  const int32_t cotangent = kDweightPixels * plan->cotangent_bytes;
  if (SuitsPairs(dweight, taps, forward, height, width) &&
      PlanPairLines(forward, /*singles=*/false, *plan, &plan->pair_lines)) {
    const PairGroups& groups = HoldsTaps(kFewPairs, forward.window) ? kFewPairs : kManyPairs;
    const int64_t team_bytes = LayOutPairs(forward, groups, plan);
    plan->copied_bytes = cotangent;
    plan->stage_bytes = Rounded(cotangent);
    const int64_t limit = shared_limit / groups.blocks - (groups.blocks - 1) * kAlignment;
    if (!PlanStages(kDweightTeams * team_bytes, 0, int64_t{kUnitBytes} * plan->units, limit, plan)) return false;
    plan->pairs_at = kDweightTeams * plan->stages * plan->stage_bytes;
    // 16-bit results need fewer parts, which are written and read: of 128x224x224 pixels 8 MB, where fp32 takes 22.
    return PlanSlices(dweight, int64_t{groups.blocks} * multiprocessors, ChainPositions(dweight.dw_type), plan);
  }
  if (SuitsPatches(dweight, taps)) {
    LayOutPatches(dweight, plan);
    plan->copied_bytes = cotangent;
    plan->stage_bytes = Rounded(cotangent);
    constexpr int kBlocks = 2;  // of a multiprocessor
    const int64_t limit = shared_limit / kBlocks - kAlignment;
    return PlanStages(kDweightTeams * kTilePatchBytes, 0, kUnitBytes * (kPatchRows / 8), limit, plan) &&
           PlanSlices(dweight, int64_t{kBlocks} * multiprocessors, gpu::kChainPositions, plan);
  }
  if (!SuitsHalo(dweight, taps, height, width) || !LayOut(dweight, forward, plan)) return false;
  // Products read whole groups, whether their taps exist or not.
  const int64_t halo_bytes = int64_t{plan->halo[0]} * plan->halo_line;
  const int64_t read_bytes = halo_bytes + int64_t{plan->taps_of_group} * plan->tap_pitch;
  plan->copied_bytes = static_cast<int32_t>(halo_bytes) + cotangent;
  plan->halo_room = Rounded(halo_bytes);
  plan->stage_bytes = plan->halo_room + Rounded(cotangent);
  return PlanStages(0, read_bytes, int64_t{kUnitBytes} * plan->units, shared_limit, plan) &&
         PlanSlices(dweight, multiprocessors, gpu::kChainPositions, plan);
}

// More columns read x again, and so does each kind, which has to be worth its partial sums. Images have to fill their
// tiles.
bool Pays(const Dweight& dweight, const DenseTaps& taps, int multiprocessors, const HaloDweightPlan& plan) {
  constexpr int kMostColumns = 64, kMostKinds = 3;
  const int64_t covered = int64_t{plan.tiles[0]} * plan.tile[0] * plan.tiles[1] * plan.tile[1];
  const bool fills = int64_t{2} * taps.out_size[0] * taps.out_size[1] > covered;
  return dweight.columns <= kMostColumns && dweight.slots > 1 && fills && plan.kinds <= kMostKinds &&
         (plan.kinds == 1 || plan.slices * plan.kinds <= static_cast<uint32_t>(multiprocessors));
}

}  // namespace

bool ChooseHalo(const Dweight& dweight, const DenseTaps& taps, const gpu::Device& device, bool forced,
                HaloDweightPlan* plan) {
  const int64_t pixels = dweight.batch * taps.in_size[0] * taps.in_size[1] * taps.out_size[0] * taps.out_size[1];
  const bool empty = pixels == 0 || dweight.slots == 0 || dweight.channels == 0 || dweight.columns == 0;
  *plan = {};
  return IsHopper(device) && !empty &&
         Plan(dweight, taps, gpu::ForwardOf(dweight, taps), device.multiprocessors, device.shared_bytes, plan) &&
         (forced || Pays(dweight, taps, device.multiprocessors, *plan));
}

}  // namespace knnconv::hopper
