#include "hopper/halo_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"
#include "hopper/device.h"
#include "hopper/pixel_classes.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::TapGemm;

constexpr int kMostBox = 256;  // elements of a dimension of a box

int32_t Rounded(int64_t bytes, int64_t unit) { return static_cast<int32_t>(CeilDiv(bytes, unit) * unit); }

// What the copy engine and 16-byte accesses demand.
bool Suits(const TapGemm& gemm) {
  const gpu::WindowTaps& window = gemm.window;
  if (gemm.kind != gpu::Taps::kWindow || gemm.groups.count() != 1 || gemm.source_rows == 0) return false;
  if (gemm.columns % 8 != 0 || !IsAligned(gemm.out)) return false;
  if (HasPairs(gemm)) {
    // Two taps make a core's 8 in depth, two of these a step.
    const bool whole_steps = window.kernel[1] % 4 == 0 || window.kernel[1] % 4 == 3;
    return !gemm.transposed && gemm.depth > 0 && window.stride[1] == 2 && window.dilation[1] == 1 && whole_steps;
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
  plan->pairs = static_cast<int32_t>(CeilDiv(plan->halo[1], 2));
  plan->singles_at = kernel_width % 2 == 1 ? plan->pairs * 16 : 0;
  plan->halo_line = plan->pairs * 16 + plan->singles_at;
  plan->steps_of_group = (kernel_width + 1) / 4;
  plan->steps = gemm.window.kernel[0] * plan->steps_of_group;
  plan->lead = 16;
  plan->last_lead = 16 + plan->singles_at;
  plan->pair_share = gpu::ShareLines(plan->pairs, plan->halo[0], kTeamThreads);
  plan->copied_bytes = plan->raw_bytes;
}

// What lies where in a block's shared memory. False where there is no room.
bool LayOutBlock(const TapGemm& gemm, int shared_limit, HaloPlan* plan) {
  constexpr int kAlignment = 1024;
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

// False where the problem does not suit these kernels, or not fit into a block's `shared_limit` bytes.
bool Plan(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  *plan = {};
  if (!Suits(gemm)) return false;
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
  const auto& size = gpu::LargestClass(gemm.window).pixels;
  const int64_t covered = int64_t{plan.tiles[0]} * plan.tile[0] * plan.tiles[1] * plan.tile[1];
  return few && gemm.slots > 1 && 2 * size[0] * size[1] > covered;
}

}  // namespace

bool ChooseHalo(const TapGemm& gemm, const gpu::Device& device, bool forced, HaloPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0;
  return IsHopper(device) && !empty && Plan(gemm, device.multiprocessors, device.shared_bytes, plan) &&
         (forced || Pays(gemm, *plan));
}

}  // namespace knnconv::hopper
