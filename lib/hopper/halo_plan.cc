#include "hopper/halo_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/device.h"
#include "hopper/pixel_classes.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::TapGemm;

constexpr int kAlignment = 1024;  // of stages
constexpr int kMostFold = 8;

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

int32_t Rounded(int64_t bytes, int64_t unit) { return static_cast<int32_t>(CeilDiv(bytes, unit) * unit); }

// What the copy engine and 16-byte accesses demand.
bool Suits(const TapGemm& gemm) {
  const gpu::WindowTaps& window = gemm.window;
  if (gemm.kind != gpu::Taps::kWindow || gemm.groups.count() != 1 || gemm.source_rows == 0) return false;
  if (!HasFolds(gemm) && (gemm.columns % 8 != 0 || !IsAligned(gemm.out))) return false;
  if (HasPairs(gemm)) {
    // Two taps make a core's 8 in depth, two of these a step.
    const bool whole_steps = window.kernel[1] % 4 == 0 || window.kernel[1] % 4 == 3;
    return !gemm.transposed && gemm.depth > 0 && window.stride[1] <= 2 && window.dilation[1] == 1 && whole_steps;
  }
  const bool neighbours = gemm.transposed || window.stride[1] == 1;
  return gemm.source_type == gemm.compute_type && gemm.depth % 8 == 0 && gemm.depth <= 64 && neighbours &&
         IsAligned(gemm.source) && IsAligned(gemm.weight);
}

// Blocks of a tile side by side: fewest tiles, then wide ones.
int BlocksAcross(const TapGemm& gemm) {
  const auto& size = gpu::LargestClass(gemm.window).pixels;
  const auto tiles = [&](int64_t down, int64_t across) {
    return CeilDiv(size[0], kBlockSide * down) * CeilDiv(size[1], kBlockSide * across);
  };
  return tiles(1, kHaloBlocks) <= tiles(kHaloBlocks, 1) ? kHaloBlocks : 1;
}

void LayOutLines(const TapGemm& gemm, HaloPlan* plan) {
  plan->pixel_bytes = LineBytes(gemm.depth);
  plan->halo_line = plan->halo[1] * plan->pixel_bytes;
  plan->steps_of_group = plan->pixel_bytes / (kHaloDepth * 2);
  plan->steps = plan->taps * plan->steps_of_group;
  plan->copied_bytes = plan->halo[0] * plan->halo_line;
}

void LayOutPairs(const TapGemm& gemm, HaloPlan* plan) {
  const int32_t kernel_width = gemm.window.kernel[1];
  plan->pixel_bytes = 16;
  plan->halo_line = plan->pair_lines.pitch;
  plan->steps_of_group = (kernel_width + 1) / 4;
  plan->steps = gemm.window.kernel[0] * plan->steps_of_group;
  plan->pair_step = 2 / plan->step[1];
  plan->lead = plan->pair_step * 16;
  plan->last_lead = plan->lead + plan->pair_lines.singles_at;
  plan->copied_bytes = plan->halo[0] * plan->pair_lines.raw_pitch;
}

// What lies where in a block's shared memory. False where there is no room.
bool LayOutBlock(const TapGemm& gemm, int shared_limit, HaloPlan* plan) {
  const bool lines = !HasPairs(gemm);
  const int columns = HaloColumns(gemm);
  const int64_t weight_bytes = int64_t{plan->steps} * columns * kHaloDepth * 2;
  const int64_t halo_bytes = lines ? 0 : 2 * plan->halo[0] * plan->halo_line;
  const int64_t result_bytes = kHaloBlocks * kBlockSide * kBlockSide * columns * gpu::ElementBytes(gemm.out_type);
  // Two stages and room for results, or less of both: results in the halo's place, then one stage.
  const auto fits = [&](int stages, bool results_in_halo) {
    plan->stages = stages;
    plan->results_in_halo = results_in_halo;
    plan->stage_bytes = Rounded(results_in_halo ? std::max<int64_t>(plan->copied_bytes, result_bytes)
                                                : plan->copied_bytes, kAlignment);
    const int64_t results = lines && !results_in_halo ? kHaloTeams * result_bytes : 0;
    const int64_t stage_bytes = int64_t{kHaloTeams} * stages * plan->stage_bytes;
    const int64_t bytes = kAlignment + stage_bytes + results + weight_bytes + kHaloTeams * halo_bytes + columns * 4;
    if (bytes + kHaloBarrierBytes > shared_limit) return false;
    plan->warp_results = static_cast<int32_t>(result_bytes / (kTeamThreads / 32));
    plan->results_pitch = results_in_halo ? plan->stage_bytes : static_cast<int32_t>(result_bytes);
    plan->results_at = results_in_halo ? 0 : static_cast<int32_t>(stage_bytes);
    plan->weight_at = static_cast<int32_t>(stage_bytes + results);
    plan->halo_at = plan->weight_at + static_cast<int32_t>(weight_bytes);
    plan->bias_at = plan->halo_at + static_cast<int32_t>(kHaloTeams * halo_bytes);
    plan->bytes = static_cast<int32_t>(bytes);
    return true;
  };
  if (!lines) return fits(1, false);
  return fits(2, false) || fits(1, false) || fits(1, true);
}

// Folds and the offsets that any of a fold's pixels reads, as the only class and its taps.
PixelClass FoldsOf(const gpu::WindowTaps& window, int fold) {
  PixelClass folds{};
  for (int d = 0; d < 2; ++d) {
    const int stride = window.stride[d], spacing = d == 0 ? fold * stride : stride;
    const int64_t reach = int64_t{window.kernel[d] - 1} * window.dilation[d];
    const int64_t first = FloorDiv(window.padding[d] - reach + stride - 1, stride);
    const int64_t last = FloorDiv(int64_t{window.padding[d]} + spacing - 1, stride);
    folds.size[d] = static_cast<int32_t>(CeilDiv(window.out_size[d], spacing));
    folds.corner[d] = static_cast<int32_t>(first);
    folds.line[d] = {0, 1, static_cast<int32_t>(last - first + 1), 0, 1};
  }
  return folds;
}

// Folds of this height in tiles of so many blocks side by side. False where that is impossible.
bool LayOutFolds(const TapGemm& gemm, int fold, int across, int multiprocessors, int shared_limit, HaloPlan* plan) {
  const gpu::WindowTaps& window = gemm.window;
  const int64_t columns = int64_t{fold} * window.stride[0] * window.stride[1] * gemm.columns;
  const auto* const instance = std::find_if(std::begin(kFoldColumns), std::end(kFoldColumns),
                                            [&](int most) { return columns <= most; });
  if (instance == std::end(kFoldColumns)) return false;
  *plan = {};
  plan->fold = fold;
  plan->fold_columns = *instance;
  const PixelClass folds = FoldsOf(window, fold);
  plan->classes_of_pixels = {1, {folds}};
  plan->classes = plan->column_tiles = 1;
  plan->blocks_across = across;
  const int blocks[2] = {kHaloBlocks / across, across};
  int64_t tiles = gemm.batch, taps = 1;
  for (int d = 0; d < 2; ++d) {
    const int step = d == 0 ? fold : 1, offsets = folds.line[d].count;
    plan->step[d] = step;
    plan->spacing[d] = step * window.stride[d];
    plan->tile[d] = kBlockSide * blocks[d];
    plan->tiles[d] = static_cast<int32_t>(CeilDiv(folds.size[d], plan->tile[d]));
    if (offsets > kMostBox) return false;
    plan->halo[d] = (plan->tile[d] - 1) * step + offsets;
    if (plan->halo[d] > kMostBox) return false;
    tiles *= plan->tiles[d];
    taps *= offsets;
  }
  if (tiles > INT32_MAX / 2 || gemm.nodes * gemm.columns > INT32_MAX) return false;
  plan->all_tiles = static_cast<int32_t>(tiles);
  plan->taps = static_cast<int32_t>(taps);
  plan->by_tiles_across = gpu::Divisor(plan->tiles[1]);
  plan->by_tiles = gpu::Divisor(plan->tiles[0] * plan->tiles[1]);
  plan->column_pairs = window.stride[1] * gemm.columns % 2 == 0 && window.out_size[1] * gemm.columns % 2 == 0 &&
                       IsAligned(gemm.out, 2 * gpu::ElementBytes(gemm.out_type));
  LayOutLines(gemm, plan);
  plan->row_pitch = plan->step[0] * plan->halo_line;
  plan->stage_bytes = Rounded(plan->copied_bytes, kAlignment);
  const int64_t weight_bytes = int64_t{plan->steps} * plan->fold_columns * kHaloDepth * 2;
  constexpr struct {
    int teams, stages;
  } kShapes[] = {{4, 2}, {4, 1}, {3, 1}, {2, 1}, {1, 1}};
  for (const auto& shape : kShapes) {
    const int64_t stage_bytes = int64_t{shape.teams} * shape.stages * plan->stage_bytes;
    const int64_t bytes = kAlignment + stage_bytes + weight_bytes;
    if (bytes + kHaloBarrierBytes > shared_limit) continue;
    plan->teams = shape.teams;
    plan->stages = shape.stages;
    plan->weight_at = static_cast<int32_t>(stage_bytes);
    plan->bytes = static_cast<int32_t>(bytes);
    plan->blocks_of_kind = static_cast<uint32_t>(std::min<int64_t>(multiprocessors, tiles));
    return true;
  }
  return false;
}

// Takes the folds with the least estimated time: of what a multiprocessor multiplies, in cycles of shared memory, which
// A (64 pixels) and B take from it; and of waiting, which few teams do not hide. On an H200, products take 1.8 times as
// long as their operands with one team, and 1.26 times with three.
bool PlanFolds(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  int64_t least = 0;
  for (int fold = 1; fold <= kMostFold; ++fold) {
    for (int across = kHaloBlocks; across >= 1; across /= 2) {
      HaloPlan found;
      if (!LayOutFolds(gemm, fold, across, multiprocessors, shared_limit, &found)) continue;
      const int64_t tiles = CeilDiv(found.all_tiles, found.blocks_of_kind);
      const int64_t cycles = tiles * found.steps * kHaloBlocks * (16 + found.fold_columns / 4);
      const int64_t cost = cycles + cycles * 4 / (5 * found.teams);
      if (least != 0 && cost >= least) continue;
      least = cost;
      *plan = found;
    }
  }
  return least != 0;
}

// False where the problem does not suit these kernels, or not fit into a block's `shared_limit` bytes.
bool Plan(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  *plan = {};
  if (!Suits(gemm)) return false;
  if (HasFolds(gemm)) return PlanFolds(gemm, multiprocessors, shared_limit, plan);
  const PixelClasses classes = PixelClassesOf(gemm.window);
  const bool pairs = HasPairs(gemm);
  const int across = BlocksAcross(gemm), down = kHaloBlocks / across;
  if (classes.count == 0 ||
      !gpu::PlanTiles(gemm, pairs, kTeamThreads, kBlockSide * down, kBlockSide * across, plan)) {
    return false;
  }
  plan->classes_of_pixels = classes;
  plan->blocks_across = across;
  const int columns = HaloColumns(gemm);
  const int64_t column_tiles = CeilDiv(gemm.columns, columns), kinds = plan->classes * column_tiles;
  if (kinds > INT32_MAX || gemm.nodes * gemm.columns > INT32_MAX) return false;
  plan->column_tiles = static_cast<uint32_t>(column_tiles);
  if (pairs) {
    if (!PlanPairLines(gemm, gemm.window.kernel[1] % 2 == 1, *plan, &plan->pair_lines)) return false;
    LayOutPairs(gemm, plan);
  } else if (std::max(plan->halo[0], plan->halo[1]) > kMostBox) {
    return false;
  } else {
    LayOutLines(gemm, plan);
  }
  plan->row_pitch = plan->step[0] * plan->halo_line;
  if (!LayOutBlock(gemm, shared_limit, plan)) return false;

  // A block keeps its weights for all its tiles: blocks of all kinds together fill the device once.
  const int64_t share = std::max<int64_t>(1, multiprocessors / kinds);
  plan->blocks_of_kind = static_cast<uint32_t>(std::min(share, CeilDiv(plan->all_tiles, kHaloTeams)));
  return true;
}

// Where channels are few, and an image fills its tiles.
bool Pays(const TapGemm& gemm, const HaloPlan& plan) {
  const bool few = gemm.depth <= 64 && gemm.columns <= 64;
  const auto& size = plan.classes_of_pixels.of[0].size;
  const int64_t covered = int64_t{plan.tiles[0]} * plan.tile[0] * plan.tiles[1] * plan.tile[1];
  return few && gemm.slots > 1 && int64_t{2} * size[0] * size[1] > covered;
}

}  // namespace

bool PlanPairLines(const TapGemm& forward, bool singles, const gpu::HaloGeometry& geometry, PairLines* lines) {
  const gpu::WindowTaps& window = forward.window;
  const int64_t element = gpu::ElementBytes(forward.source_type), pixel = forward.depth * element;
  const int64_t line = window.source_size[1] * pixel, first = -window.padding[1] * pixel;  // in an image's line
  const int64_t start = FloorDiv(first, 16) * 16, bytes = CeilDiv(first - start + geometry.halo[1] * pixel, 16) * 16;
  if (!IsAligned(forward.source) || line % 16 != 0 || line > INT32_MAX || start < INT32_MIN) return false;
  if (bytes / element > kMostBox || geometry.halo[0] > kMostBox) return false;
  *lines = {};
  lines->pairs = static_cast<int32_t>(CeilDiv(geometry.halo[1], geometry.step[1]));
  lines->singles_at = singles ? lines->pairs * 16 : 0;
  lines->pitch = lines->pairs * 16 + lines->singles_at;
  lines->raw_pitch = static_cast<int32_t>(bytes);
  lines->raw_column = static_cast<int32_t>(start / element);
  lines->raw_shift = static_cast<int32_t>(first - start);
  lines->share = gpu::ShareLines(lines->pairs, geometry.halo[0], kTeamThreads);
  return true;
}

bool ChooseHalo(const TapGemm& gemm, const gpu::Device& device, bool forced, HaloPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0;
  return IsHopper(device) && !empty && Plan(gemm, device.multiprocessors, device.shared_bytes, plan) &&
         (forced || Pays(gemm, *plan));
}

}  // namespace knnconv::hopper
