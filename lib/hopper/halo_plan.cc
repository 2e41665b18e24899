#include "hopper/halo_plan.h"

#include <algorithm>

#include "gpu/arithmetic.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned, gpu::TapGemm;

int32_t Rounded(int64_t bytes, int64_t unit) { return static_cast<int32_t>(CeilDiv(bytes, unit) * unit); }

// Rows of 16 bytes alone: of the source as copies take them (or pairs), of weights and of the result.
bool Suits(const TapGemm& gemm) {
  const gpu::WindowTaps& window = gemm.window;
  if (gemm.kind != gpu::Taps::kWindow || gemm.columns % 8 != 0 || !IsAligned(gemm.out)) return false;
  if (HasPairs(gemm)) {
    // Two taps make a core's 8 in depth, two of these a step.
    const bool whole_steps = window.kernel[1] % 4 == 0 || window.kernel[1] % 4 == 3;
    return !gemm.transposed && gemm.depth > 0 && window.stride[1] == 2 && window.dilation[1] == 1 && whole_steps;
  }
  return gemm.source_type == gemm.compute_type && gemm.depth % gpu::kHaloChunk == 0 && IsAligned(gemm.source) &&
         IsAligned(gemm.weight);
}

// Blocks of a tile side by side: fewest tiles, squares before lines.
int BlocksAcross(const TapGemm& gemm, int blocks) {
  const auto& size = gpu::LargestClass(gemm.window).pixels;
  int best = 0;
  int64_t least = 0;
  for (int across = 1; across <= blocks; across *= 2) {
    const int down = blocks / across;
    const int64_t tiles = CeilDiv(size[0], kBlockSide * down) * CeilDiv(size[1], kBlockSide * across);
    const int64_t cost = tiles * 16 + std::abs(down - across);
    if (best != 0 && cost > least) continue;
    best = across;
    least = cost;
  }
  return best;
}

void LayOutPairs(const TapGemm& gemm, HaloPlan* plan) {
  const int32_t kernel_width = gemm.window.kernel[1], chunks = (kernel_width + 1) / 2;
  plan->pairs = static_cast<int32_t>(CeilDiv(plan->halo[1], 2));
  plan->singles_at = kernel_width % 2 == 1 ? plan->pairs * 16 : 0;
  plan->line_pitch = plan->pairs * 16 + plan->singles_at;
  plan->steps_of_group = chunks / 2;
  plan->step_pitch = 32;
  plan->lead = 16;
  plan->last_lead = 16 + plan->singles_at;
  plan->pair_share = gpu::ShareLines(plan->pairs, plan->halo[0], kTeamThreads);
}

}  // namespace

int32_t ChunkPitch(int64_t pixels, int chunks) {
  const int64_t apart = chunks == 2 ? 4 : chunks == 4 ? 2 : 1, period = 2 * apart;
  return chunks == 1 ? static_cast<int32_t>(pixels * 16)
                     : static_cast<int32_t>((CeilDiv(pixels - apart, period) * period + apart) * 16);
}

void LayOutChunks(int stored_chunks, gpu::HaloGeometry* geometry) {
  const int64_t pixels = CeilDiv(geometry->halo[1], geometry->step[1]);
  geometry->pixel_pitch = 16;
  geometry->plane_pitch = static_cast<int32_t>(pixels * 16);
  geometry->chunk_pitch = ChunkPitch(pixels * geometry->step[1], geometry->chunks);
  geometry->line_pitch = stored_chunks * geometry->chunk_pitch;
}

bool PlanHalo(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  *plan = {};
  if (!Suits(gemm)) return false;
  const HaloForm form = FormOf(gemm);
  const bool pairs = HasPairs(gemm);
  const int across = BlocksAcross(gemm, form.blocks), down = form.blocks / across;
  if (!gpu::PlanTiles(gemm, pairs, kTeamThreads, kBlockSide * down, kBlockSide * across, plan)) return false;
  plan->blocks_across = across;
  const int64_t column_tiles = CeilDiv(gemm.columns, form.columns);
  const int64_t kinds = gemm.groups.count() * plan->classes * column_tiles;
  if (kinds > INT32_MAX || gemm.nodes * gemm.columns > INT32_MAX) return false;
  plan->column_tiles = static_cast<uint32_t>(column_tiles);
  if (pairs) {
    LayOutPairs(gemm, plan);
  } else {
    plan->stored_chunks = (plan->chunks + 1) / 2 * 2;
    LayOutChunks(plan->stored_chunks, plan);
    plan->steps_of_group = plan->stored_chunks / 2;
    plan->step_pitch = 2 * plan->chunk_pitch;
    plan->lead = plan->last_lead = plan->chunk_pitch;
  }
  plan->row_pitch = plan->step[0] * plan->line_pitch;
  plan->halo_bytes = plan->halo[0] * plan->line_pitch;
  plan->steps = (pairs ? gemm.window.kernel[0] : plan->taps) * plan->steps_of_group;

  const int64_t weight_bytes = int64_t{plan->steps} * form.columns * kStepElements * 2;
  plan->steps_at = Rounded(plan->taps * 4, 16);
  plan->bias_at = plan->steps_at + Rounded((plan->steps + 1) * 4, 16);  // the main loop reads a step ahead
  plan->weight_at = Rounded(plan->bias_at + form.columns * 4, 128);
  const int64_t base = plan->weight_at + weight_bytes;
  const int64_t second = plan->raw_bytes > 0 ? plan->raw_bytes : plan->halo_bytes;
  const bool two = base + kHaloTeams * Rounded(plan->halo_bytes + second, 16) <= shared_limit;
  const int64_t team_bytes = Rounded(plan->halo_bytes + (two ? second : 0), 16);
  if ((!two && plan->raw_bytes > 0) || base + kHaloTeams * team_bytes > shared_limit) return false;
  plan->team_at = static_cast<int32_t>(base);
  plan->team_bytes = static_cast<int32_t>(team_bytes);
  plan->stage_at = two ? plan->halo_bytes : 0;
  plan->bytes = static_cast<int32_t>(base + kHaloTeams * team_bytes);

  // A block keeps its weights for all its tiles: blocks of all kinds together fill the device once.
  const int64_t share = std::max<int64_t>(1, multiprocessors / kinds);
  plan->blocks_of_kind = static_cast<uint32_t>(std::min(share, CeilDiv(plan->all_tiles, kHaloTeams)));
  return true;
}

}  // namespace knnconv::hopper
