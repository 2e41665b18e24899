#include "gpu/halo_plan.h"

#include <algorithm>
#include <numeric>

#include "gpu/arithmetic.h"

namespace knnconv::gpu {
namespace {

// What a tile of this height and width needs in a dimension of the source.
int64_t HaloOf(const WindowTaps& window, int dimension, int64_t tile) {
  const int64_t reach = int64_t{window.kernel[dimension] - 1} * window.dilation[dimension];
  return window.transposed ? tile + reach / window.stride[dimension]
                           : (tile - 1) * window.stride[dimension] + reach + 1;
}

// The most taps of one residue: of the filter's positions f, those with the same f * dilation mod stride.
int TapsOf(const WindowTaps& window, int dimension) {
  if (!window.transposed) return window.kernel[dimension];
  const int period = window.stride[dimension] / std::gcd(window.stride[dimension], window.dilation[dimension]);
  return static_cast<int>(CeilDiv(window.kernel[dimension], period));
}

// Takes the tile of at most `rows` pixels with the least work: products cost a tile the same however much of it exists,
// and staging a pixel of the halo about a quarter of a pixel's products (9 taps of 32 channels).
bool ChooseTile(const WindowTaps& window, int rows, int (*tile)[2]) {
  const auto& size = LargestClass(window).pixels;
  int64_t least = 0;
  for (int width = 1; width <= rows; ++width) {
    const bool fills = width == size[1] || (width % 8 == 0 && width < size[1] + 8);
    if (!fills) continue;
    const int64_t height = std::min<int64_t>(rows / width, size[0]);
    const int64_t halo = HaloOf(window, 0, height) * HaloOf(window, 1, width);
    const int64_t tiles = CeilDiv(size[0], height) * CeilDiv(size[1], width);
    const int64_t cost = tiles * (4 * rows + halo);
    if (least != 0 && cost >= least) continue;
    least = cost;
    (*tile)[0] = static_cast<int>(height);
    (*tile)[1] = width;
  }
  return least != 0;
}

}  // namespace

HaloSize LargestClass(const WindowTaps& window) {
  HaloSize size;
  for (int d = 0; d < 2; ++d) {
    size.pixels[d] = CeilDiv(window.out_size[d], window.transposed ? window.stride[d] : 1);
  }
  return size;
}

HaloShare ShareLines(int units, int lines, int threads) {
  HaloShare share{};
  int64_t least = 0;
  for (int rounds = 1; rounds <= 8; ++rounds) {
    const int64_t width = CeilDiv(std::max(units, 1), rounds);
    if (width > threads && rounds < 8) continue;
    const int64_t used = std::min<int64_t>(width, threads), rows = threads / used;
    const int64_t passes = CeilDiv(units, used) * CeilDiv(lines, rows);
    if (least != 0 && passes >= least) continue;
    least = passes;
    share.width = static_cast<int32_t>(used);
    share.rows = static_cast<int32_t>(rows);
  }
  share.by_width = Divisor(share.width);
  return share;
}

bool PlanGeometry(const TapGemm& gemm, bool quads, int threads, int rows, HaloGeometry* geometry) {
  int tile[2];
  return ChooseTile(gemm.window, rows, &tile) && PlanTiles(gemm, quads, threads, tile[0], tile[1], geometry);
}

bool PlanTiles(const TapGemm& gemm, bool quads, int threads, int height, int width, HaloGeometry* geometry) {
  const WindowTaps& window = gemm.window;
  const HaloSize size = LargestClass(window);
  int64_t classes = 1;
  *geometry = {};
  geometry->tile[0] = height;
  geometry->tile[1] = width;
  int64_t halo[2];
  for (int d = 0; d < 2; ++d) {
    geometry->spacing[d] = window.transposed ? window.stride[d] : 1;
    geometry->step[d] = window.transposed ? 1 : window.stride[d];
    classes *= std::min(geometry->spacing[d], window.out_size[d]);
    geometry->tiles[d] = static_cast<int32_t>(CeilDiv(size.pixels[d], geometry->tile[d]));
    halo[d] = std::max<int64_t>(1, HaloOf(window, d, geometry->tile[d]));
    if (halo[d] > 4096) return false;
    geometry->halo[d] = static_cast<int32_t>(halo[d]);
  }
  const int64_t tiles = gemm.batch * geometry->tiles[0] * geometry->tiles[1];
  const int64_t taps = int64_t{TapsOf(window, 0)} * TapsOf(window, 1);
  if (tiles > INT32_MAX / 2 || classes > INT32_MAX || taps > 1024) return false;
  geometry->classes = static_cast<uint32_t>(classes);
  geometry->all_tiles = static_cast<int32_t>(tiles);
  geometry->taps = static_cast<int32_t>(taps);

  geometry->chunks = quads ? 1 : static_cast<int32_t>(CeilDiv(gemm.depth, kHaloChunk));
  geometry->chunk_pitch = 16;
  // Odd in units of 16 bytes: 8 neighbouring pixels' chunks lie in different banks.
  geometry->pixel_pitch = quads ? 8 : (geometry->chunks | 1) * 16;
  const int64_t plane = CeilDiv(halo[1], geometry->step[1]) * geometry->pixel_pitch, line = plane * geometry->step[1];
  const int64_t bytes = CeilDiv(line * halo[0], 16) * 16;
  if (bytes > INT32_MAX / 4) return false;
  geometry->plane_pitch = static_cast<int32_t>(plane);
  geometry->line_pitch = static_cast<int32_t>(line);
  geometry->halo_bytes = static_cast<int32_t>(bytes);
  geometry->aligned_source = IsAligned(gemm.source);
  const bool in_place = !quads && gemm.source_type == gemm.compute_type && gemm.depth % kHaloChunk == 0;
  if (!in_place || !geometry->aligned_source) {
    // A line starts and ends anywhere in 16 bytes.
    const int64_t pitch = (halo[1] * gemm.depth * ElementBytes(gemm.source_type) + 30) / 16 * 16;
    if (pitch * halo[0] > INT32_MAX / 4) return false;
    geometry->raw_pitch = static_cast<int32_t>(pitch);
    geometry->raw_bytes = static_cast<int32_t>(pitch * halo[0]);
    geometry->raw_share = ShareLines(geometry->raw_pitch / 16, geometry->halo[0], threads);
  }
  geometry->share = ShareLines(geometry->halo[1] * geometry->chunks, geometry->halo[0], threads);

  geometry->by_width = Divisor(geometry->tile[1]);
  geometry->by_chunks = Divisor(geometry->chunks);
  geometry->by_step = Divisor(geometry->step[1]);
  geometry->by_tiles_across = Divisor(geometry->tiles[1]);
  geometry->by_tiles = Divisor(geometry->tiles[0] * geometry->tiles[1]);
  geometry->by_padded_depth = Divisor(geometry->chunks * kHaloChunk);
  geometry->by_kernel_width = Divisor(window.kernel[1]);
  return true;
}

int ResidentBlocks(int64_t bytes, int shared_limit, int most) {
  constexpr int kReserved = 1 << 10;  // of shared memory, that each block costs besides its own
  return static_cast<int>(std::clamp<int64_t>((shared_limit + kReserved) / (bytes + kReserved), 1, most));
}

bool PlanHalo(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  const bool quads = IsQuad(gemm);
  const HaloFixed fixed = HaloFixedOf(quads, HaloProducts(gemm));
  *plan = {};
  if (!PlanGeometry(gemm, quads, fixed.warps * 32, fixed.rows, plan)) return false;
  const int64_t column_tiles = CeilDiv(gemm.columns, fixed.columns);
  const int64_t kinds = gemm.groups.count() * plan->classes * column_tiles;
  if (kinds > INT32_MAX || gemm.nodes * gemm.columns > INT32_MAX) return false;
  plan->column_tiles = static_cast<uint32_t>(column_tiles);

  // Steps of the main loop: 16 deep, of two chunks or four quads.
  const int64_t per_step = quads ? 4 : 2, entries = CeilDiv(plan->taps * plan->chunks, per_step) * per_step;
  const int64_t depth = entries * (quads ? kMostQuadChannels : kHaloChunk);
  const int64_t weight_pitch = depth * 2 + 16;
  const int64_t weight_bytes = quads             ? depth * fixed.columns * 2
                               : gemm.transposed ? fixed.columns * weight_pitch
                                                 : depth * HaloWeightPitch(fixed.columns);
  const auto rounded = [](int64_t bytes) { return static_cast<int32_t>(CeilDiv(bytes, 16) * 16); };
  plan->bias_at = 16;
  plan->slots_at = plan->bias_at + rounded(fixed.columns * 4);
  plan->table_at = plan->slots_at + rounded(plan->taps * 4);
  plan->weight_at = plan->table_at + rounded((entries + per_step) * 8);  // the main loop reads a step ahead
  plan->vector_weight = (gemm.transposed ? gemm.depth : gemm.columns) % kHaloChunk == 0 && IsAligned(gemm.weight);
  plan->vector_out = int64_t{gemm.columns} * ElementBytes(gemm.out_type) % 16 == 0 && IsAligned(gemm.out);
  const int64_t patch = plan->vector_out ? 0 : fixed.warps * 16 * HaloPatchPitch(fixed.columns) * 4;
  const int64_t base = plan->weight_at + weight_bytes + plan->halo_bytes + patch;
  if (base > shared_limit) return false;
  // A second halo is worth less than a second block.
  const bool two = ResidentBlocks(base + plan->halo_bytes, shared_limit, 2) >= ResidentBlocks(base, shared_limit, 2) &&
                   base + plan->halo_bytes <= shared_limit;
  const int64_t stage = plan->raw_bytes > 0 ? plan->raw_bytes : two ? plan->halo_bytes : 0;
  const int64_t bytes = base + rounded(stage);
  if (bytes > shared_limit) return false;
  plan->weight_pitch = static_cast<int32_t>(weight_pitch);
  plan->halo_at = plan->weight_at + static_cast<int32_t>(weight_bytes);
  plan->stage_at = stage > 0 ? plan->halo_at + plan->halo_bytes : plan->halo_at;
  plan->patch_at = plan->halo_at + plan->halo_bytes + rounded(stage);
  plan->bytes = static_cast<int32_t>(bytes);

  // A block keeps its weights for all its tiles: blocks of all kinds together fill the device once.
  const int64_t resident = ResidentBlocks(plan->bytes, shared_limit, fixed.blocks);
  const int64_t share = std::max<int64_t>(1, multiprocessors * resident / kinds);
  plan->blocks_of_kind = static_cast<uint32_t>(std::min<int64_t>(share, plan->all_tiles));
  return true;
}

}  // namespace knnconv::gpu
