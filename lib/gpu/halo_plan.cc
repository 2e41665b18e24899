#include "gpu/halo_plan.h"

#include <algorithm>
#include <numeric>

namespace knnconv::gpu {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

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

// Takes the tile of at most `rows` pixels with the least work: products cost a tile the same however much of it exists, and
// staging a pixel of the halo about a quarter of a pixel's products (9 taps of 32 channels).
void ChooseTile(const WindowTaps& window, const int64_t (&size)[2], int rows, HaloPlan* plan) {
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
    plan->tile[0] = static_cast<int32_t>(height);
    plan->tile[1] = width;
  }
}

}  // namespace

bool PlanHalo(const TapGemm& gemm, int multiprocessors, int shared_limit, HaloPlan* plan) {
  const WindowTaps& window = gemm.window;
  const bool quads = IsQuad(gemm);
  const HaloFixed fixed = HaloFixedOf(quads, HaloProducts(gemm));
  *plan = {};
  int64_t size[2];  // pixels of the largest class
  int64_t classes = 1;
  for (int d = 0; d < 2; ++d) {
    plan->spacing[d] = window.transposed ? window.stride[d] : 1;
    plan->step[d] = window.transposed ? 1 : window.stride[d];
    size[d] = CeilDiv(window.out_size[d], plan->spacing[d]);
    classes *= std::min(plan->spacing[d], window.out_size[d]);
  }
  ChooseTile(window, size, fixed.rows, plan);
  if (plan->tile[1] == 0) return false;
  int64_t halo[2];
  for (int d = 0; d < 2; ++d) {
    plan->tiles[d] = static_cast<int32_t>(CeilDiv(size[d], plan->tile[d]));
    halo[d] = std::max<int64_t>(1, HaloOf(window, d, plan->tile[d]));
    if (halo[d] > 4096) return false;
    plan->halo[d] = static_cast<int32_t>(halo[d]);
  }
  plan->classes = static_cast<uint32_t>(classes);
  plan->column_tiles = static_cast<uint32_t>(CeilDiv(gemm.columns, fixed.columns));
  const int64_t tiles = gemm.batch * plan->tiles[0] * plan->tiles[1];
  const int64_t kinds = gemm.groups.count() * classes * plan->column_tiles;
  const int64_t taps = int64_t{TapsOf(window, 0)} * TapsOf(window, 1);
  if (tiles > INT32_MAX / 2 || kinds > INT32_MAX || taps > 1024) return false;
  plan->all_tiles = static_cast<int32_t>(tiles);
  plan->taps = static_cast<int32_t>(taps);

  plan->chunks = quads ? 1 : static_cast<int32_t>(CeilDiv(gemm.depth, kHaloChunk));
  plan->pixel_pitch = quads ? 8 : (plan->chunks | 1) * 16;  // odd: 8 neighbouring pixels' chunks lie in different banks
  const int64_t plane = CeilDiv(halo[1], plan->step[1]) * plan->pixel_pitch, line = plane * plan->step[1];
  const int64_t halo_bytes = CeilDiv(line * halo[0], 16) * 16;
  // Steps of the main loop: 16 deep, of two chunks or four quads.
  const int64_t entries = quads ? CeilDiv(taps, 4) * 4 : CeilDiv(taps * plan->chunks, 2) * 2;
  const int64_t depth = entries * (quads ? 4 : kHaloChunk);
  plan->weight_pitch = static_cast<int32_t>(depth * 2 + 16);
  const int64_t weight_bytes = gemm.transposed && !quads ? fixed.columns * int64_t{plan->weight_pitch}
                               : quads                   ? depth * fixed.columns * 2
                                                         : depth * HaloWeightPitch(fixed.columns);
  const auto rounded = [](int64_t bytes) { return static_cast<int32_t>(CeilDiv(bytes, 16) * 16); };
  plan->bias_at = 16;  // after zeros
  plan->slots_at = plan->bias_at + rounded(fixed.columns * 4);
  plan->table_at = plan->slots_at + rounded(taps * 4);
  plan->weight_at = plan->table_at + rounded(entries * 8);
  const int64_t bytes = plan->weight_at + weight_bytes + 2 * halo_bytes;
  if (bytes > shared_limit) return false;
  plan->plane_pitch = static_cast<int32_t>(plane);
  plan->line_pitch = static_cast<int32_t>(line);
  plan->halo_at = plan->weight_at + static_cast<int32_t>(weight_bytes);
  plan->halo_bytes = static_cast<int32_t>(halo_bytes);
  plan->bytes = static_cast<int32_t>(bytes);

  const int weight_line = gemm.transposed ? gemm.depth : gemm.columns;
  const int out_bytes = ElementBytes(gemm.out_type);
  plan->vector_source = gemm.source_type == gemm.compute_type && gemm.depth % kHaloChunk == 0 && IsAligned(gemm.source);
  plan->vector_weight = weight_line % kHaloChunk == 0 && IsAligned(gemm.weight);
  plan->vector_out = int64_t{gemm.columns} * out_bytes % 16 == 0 && IsAligned(gemm.out);

  // A block keeps its weights for all its tiles; blocks of all kinds together fill the device once.
  constexpr int kReserved = 1 << 10;  // bytes of shared memory that each block costs besides its own
  const int64_t resident = std::clamp<int64_t>((shared_limit + kReserved) / (bytes + kReserved), 1, fixed.blocks);
  const int64_t share = std::max<int64_t>(1, multiprocessors * resident / std::max<int64_t>(kinds, 1));
  // Every block gets equally many tiles, as far as that is possible.
  const int64_t rounds = CeilDiv(std::max<int64_t>(tiles, 1), share);
  plan->blocks_of_kind = static_cast<uint32_t>(CeilDiv(tiles, rounds));

  plan->by_width = Divisor(plan->tile[1]);
  plan->by_halo_line = Divisor(plan->halo[1] * plan->chunks);
  plan->by_chunks = Divisor(plan->chunks);
  plan->by_step = Divisor(plan->step[1]);
  plan->by_tiles_across = Divisor(plan->tiles[1]);
  plan->by_tiles = Divisor(plan->tiles[0] * plan->tiles[1]);
  plan->by_padded_depth = Divisor(plan->chunks * kHaloChunk);
  plan->by_kernel_width = Divisor(window.kernel[1]);
  return true;
}

}  // namespace knnconv::gpu
