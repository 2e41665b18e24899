// Dense convolutions of few channels on Hopper, each tile's halo in shared memory once:
//
//     out[pixel, :] = round(bias + sum over taps f:  source[pixel's place + offset(f), :] @ weight[slot(f)])
//
//         halo of source pixels               weights (all slots, for the block's life)
//         [ . . . . . . . . ]                 [ depth (tap, channel) ]
//         [ . t t t t t t . ]  @ each step    [    x columns         ]    a warpgroup: 64 pixels x all columns x 16
//         [ . t t t t t t . ]    a tap moves
//         [ . . . . . . . . ]    the address
//
// The halo lies as wgmma reads it (halo_plan.h), so that A of every tap is an address into it and nothing is copied
// twice. A team of 128 threads has tiles of its own, whose halos the copy engine brings ahead. The four teams of a
// multiprocessor share the weights and multiply in turn. Results leave from registers 16 bytes at a time: a quad of
// lanes exchanges its columns.
//
// What bounds it: source and result once through memory.
#pragma once

#include <cstdint>

#include "gpu/halo_block.h"
#include "gpu/launch.h"
#include "hopper/halo_stage.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

// kGroupSteps: steps of 16 in depth of a tap; 1 with pairs.
template <typename T_, bool kPairs_, bool kTransposed_, int kColumns_, int kGroupSteps_>
struct HaloShape {
  using T = T_;
  static constexpr bool kPairs = kPairs_, kTransposed = kTransposed_;
  static constexpr int kColumns = kColumns_, kGroupSteps = kGroupSteps_, kThreads = kHaloTeams * kTeamThreads;
  static constexpr int kStepBytes = kHaloDepth * kColumns * 2;  // of weights
  static constexpr int kGroupBytes = kGroupSteps * kStepBytes;
  // From a step's weights to the next one's, which transposed weights have further on in their lines.
  static constexpr int kNextStep = !kPairs && kTransposed ? kHaloDepth * 2 : kStepBytes;
  static constexpr Major kMajorB = kPairs || kTransposed ? Major::kK : Major::kMN;
};

template <typename Shape>
using HaloSums = float[kHaloBlocks][Shape::kColumns / 2];

// Of a tile's blocks, which one is how many blocks down and across.
KNNCONV_DEVICE int BlockDown(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? block : 0; }
KNNCONV_DEVICE int BlockAcross(const HaloPlan& plan, int block) { return plan.blocks_across == 1 ? 0 : block; }

// Starts the products of the tile at `halo`, and leaves them running. All that moves is the same in a warp, and the
// compiler sees it: descriptions stay in uniform registers.
template <typename Shape>
KNNCONV_DEVICE void StartProducts(const HaloPlan& plan, const HaloBlock& place, const char* halo, const char* weight,
                                  Barrier* weight_parts, HaloSums<Shape>& sums) {
  uint64_t a[kHaloBlocks];
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int at = BlockDown(plan, i) * plan.row_pitch + BlockAcross(plan, i) * plan.pixel_bytes;
    a[i] = Shape::kPairs ? DescribeCores(halo + kBlockSide * at, 0, plan.row_pitch)
                         : DescribeLines(halo + place.first_at + kBlockSide * at, plan.pixel_bytes, plan.row_pitch);
  }
  constexpr int kLine = Shape::kTransposed ? Shape::kGroupSteps * kHaloDepth * 2 : Shape::kColumns * 2;
  const uint64_t b = Shape::kPairs ? DescribeCores(weight, Shape::kStepBytes / 2, 128)
                                   : DescribeLines(weight, kLine, 8 * kLine);
  uint32_t line = 0, depth = 0;
#pragma unroll 1
  for (int i = 0; i < place.lines; ++i) {
    if constexpr (!Shape::kPairs) weight_parts[min(i, kWeightParts - 1)].Wait(0);
    uint32_t at = line;
#pragma unroll 1
    for (int j = 0; j < place.columns; ++j) {
      uint32_t lead = 0;
      if constexpr (Shape::kPairs) {
        lead = static_cast<uint32_t>((j == place.columns - 1 ? plan.last_lead : plan.lead) >> 4) << 16;
      }
      FenceProducts();
#pragma unroll
      for (int step = 0; step < Shape::kGroupSteps; ++step) {
#pragma unroll
        for (int block = 0; block < kHaloBlocks; ++block) {
          MultiplyAdd<typename Shape::T, Shape::kColumns, Major::kK, Shape::kMajorB>(
              sums[block], Advance(a[block], at + step * (kHaloDepth * 2 / 16) + lead),
              Advance(b, depth + step * (Shape::kNextStep / 16)));
        }
      }
      CommitProducts();
      at += place.column_step;
      depth += Shape::kGroupBytes / 16;
    }
    line += place.line_step;
  }
}

// Two teams and two others multiply in turn, so that of each pair one multiplies while the other waits for copies,
// makes pairs or stores; a team alone does not keep the tensor cores busy, since its products wait for each other. All
// teams of a block take equally many turns.
class Turns {
 public:
  KNNCONV_DEVICE void Skip() { --left_; }
  KNNCONV_DEVICE Turns(int team, int count) : team_(team), left_(count) {
#ifdef DN_NOTURNS
    return;
#endif
    if (!IsFirst() && left_ > 0) ArriveAt(Id(team_ ^ 2), 2 * kTeamThreads);
  }
  KNNCONV_DEVICE int Left() const { return left_; }
  KNNCONV_DEVICE void Take() const { SyncThreads(Id(team_), 2 * kTeamThreads); }
  KNNCONV_DEVICE void Pass() {
    --left_;
    if (IsFirst() || left_ > 0) ArriveAt(Id(team_ ^ 2), 2 * kTeamThreads);
  }

 private:
  static_assert(kHaloTeams == 4);
  KNNCONV_DEVICE bool IsFirst() const { return team_ < 2; }
  // Of the barrier where a team waits for the other.
  KNNCONV_DEVICE static int Id(int team) { return 1 + kHaloTeams + team; }

  const int team_;
  int left_;
};

// Of four values in each of a quad's lanes, gives lane q the q-th of every lane.
KNNCONV_DEVICE void TransposeQuad(uint32_t (&value)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & distance) != 0) continue;
      uint32_t &first = value[low], &second = value[low + distance];
      const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? first : second, distance);
      (upper ? first : second) = other;
    }
  }
}

// Stores a lane's pairs of 32 columns of a pixel: sums[4 * j] and the next are columns 8 * j + 2 * (lane % 4) and the
// next. `count`: columns that exist.
template <typename Out>
KNNCONV_DEVICE void StorePairs(Out* out, const float (&value)[8], int quarter, int count, bool exists) {
  struct alignas(2 * sizeof(Out)) Pair {
    Out element[2];
  };
  if constexpr (sizeof(Out) == 2) {
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Pair pair{{gpu::FromFloat<Out>(value[2 * j]), gpu::FromFloat<Out>(value[2 * j + 1])}};
      bits[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    TransposeQuad(bits);
    if (exists && 8 * quarter < count) {
      *reinterpret_cast<uint4*>(out + 8 * quarter) = make_uint4(bits[0], bits[1], bits[2], bits[3]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (exists && 8 * j < count) {
        *reinterpret_cast<Pair*>(out + 8 * j + 2 * quarter) = Pair{{value[2 * j], value[2 * j + 1]}};
      }
    }
  }
}

// out = round(sums + bias). A warp has lines 2 * warp and the next of each block, a quad of lanes one pixel of each.
template <typename Shape, typename Out>
KNNCONV_DEVICE void StoreTileAs(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block,
                                int tile_number, int thread, const float* bias, const HaloSums<Shape>& sums) {
  const PixelClass& pixels = block.pixels;
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int lane = thread % 32, first_line = tile.i + thread / 32 * 2, first_pixel = tile.j + lane / 4;
  const int quarter = lane % 4;
  Out* const image = static_cast<Out*>(gemm.out) + int64_t{tile.image} * gemm.nodes * gemm.columns + block.first_column;
#pragma unroll
  for (int i = 0; i < kHaloBlocks; ++i) {
    const int w = first_pixel + BlockAcross(plan, i) * kBlockSide;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = first_line + BlockDown(plan, i) * kBlockSide + half;
      const bool exists = h < pixels.size[0] && w < pixels.size[1];
      const int pixel = (h * plan.spacing[0] + pixels.residue[0]) * gemm.window.out_size[1] + w * plan.spacing[1] +
                        pixels.residue[1];
      Out* const out = image + pixel * gemm.columns;
#pragma unroll
      for (int first = 0; first < Shape::kColumns; first += 32) {
        float value[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          value[e] = sums[i][first / 2 + e / 2 * 4 + half * 2 + e % 2] + bias[first + e / 2 * 8 + quarter * 2 + e % 2];
        }
        StorePairs(out + first, value, quarter, gemm.columns - block.first_column - first, exists);
      }
    }
  }
}

template <typename Shape>
KNNCONV_DEVICE void StoreTile(const gpu::TapGemm& gemm, const HaloPlan& plan, const HaloBlock& block, int tile_number,
                              int thread, const float* bias, const HaloSums<Shape>& sums) {
  if (gemm.out_type == gpu::Element::kF32) {
    StoreTileAs<Shape, float>(gemm, plan, block, tile_number, thread, bias, sums);
  } else if (gemm.out_type == gpu::Element::kF16) {
    StoreTileAs<Shape, gpu::Half>(gemm, plan, block, tile_number, thread, bias, sums);
  } else {
    StoreTileAs<Shape, gpu::BFloat>(gemm, plan, block, tile_number, thread, bias, sums);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    HaloKernel(const __grid_constant__ gpu::TapGemm gemm, const __grid_constant__ HaloPlan plan,
               const __grid_constant__ CUtensorMap source, const __grid_constant__ CUtensorMap weight_map) {
  using T = typename Shape::T;
  extern __shared__ char unaligned[];
  __shared__ Barrier barriers[kHaloTeams][kHaloStages];
  __shared__ Barrier weight_parts[kWeightParts];
  static_assert(sizeof(barriers) + sizeof(weight_parts) == kHaloBarrierBytes);
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const HaloBlock block = OpenHalo<Shape>(gemm, plan);
  const int team = __shfl_sync(kAllLanes, threadIdx.x / kTeamThreads, 0), thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.blocks_of_kind) * kHaloTeams;
  char* const stages = shared + team * plan.stages * plan.stage_bytes;
  int tile = block.part * kHaloTeams + team;
  gpu::HaloTaps taps{};  // for copies by threads
  for (int d = 0; d < 2; ++d) taps.origin[d] = block.pixels.corner[d];
  const char* const from = static_cast<const char*>(gemm.source);
  // Lines: by one thread, which the copy engine answers through the stage's barrier. Pairs: by all.
  const auto load = [&](int number, int stage) {
    if constexpr (Shape::kPairs) {
      if (number < plan.all_tiles) gpu::StageHalo(gemm, plan, taps, from, number, thread, stages);
      gpu::CommitCopies();
    } else {
      if (thread != 0 || number >= plan.all_tiles) return;
      LoadHalo(plan, block, source, number, stages + stage * plan.stage_bytes, &barriers[team][stage]);
    }
  };
  char* const weight = shared + plan.weight_at;
  if constexpr (Shape::kPairs) {
    StagePairWeights<Shape>(gemm, plan, block, gemm.window.kernel[1], weight, [&] { load(tile, 0); });
    FenceAsyncProxy();
  } else if (threadIdx.x == 0) {
    const int parts = min(block.lines, kWeightParts);
    for (auto& of_team : barriers) {
      for (Barrier& barrier : of_team) barrier.Init(1);
    }
    for (int i = 0; i < parts; ++i) weight_parts[i].Init(i < kWeightParts - 1 ? 1 : block.lines - i);
    FenceBarrierInit();
    FenceAsyncProxy();
    const auto load_line = [&](int line) {
      LoadWeightLine<Shape>(gemm, block, weight_map, line, weight, &weight_parts[min(line, kWeightParts - 1)]);
    };
    if (block.lines > 0) load_line(0);
    for (int stage = 0; stage < plan.stages; ++stage) {
      for (int i = 0; i < kHaloTeams; ++i) {
        const int number = block.part * kHaloTeams + i + stage * stride;
        if (number >= plan.all_tiles) continue;
        LoadHalo(plan, block, source, number, shared + (i * plan.stages + stage) * plan.stage_bytes,
                 &barriers[i][stage]);
      }
      for (int line = 1; stage == 0 && line < block.lines; ++line) load_line(line);
    }
  }
  FillBias<Shape>(gemm, plan, block, shared);
  __syncthreads();
  const float* const bias = reinterpret_cast<const float*>(shared + plan.bias_at);
  const int halo_bytes = plan.halo[0] * plan.halo_line;
  char* const halos = shared + plan.halo_at + team * 2 * halo_bytes;
  const int first_tile = block.part * kHaloTeams;  // of the block: no team has more tiles than the first
  Turns turns(team, (plan.all_tiles - first_tile + stride - 1) / stride);
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (; turns.Left() > 0; tile += stride) {
    if (tile >= plan.all_tiles) {
#ifndef DN_NOTURNS
      turns.Take();
      turns.Pass();
#endif
      break;
    }
    const char* halo = stages + stage * plan.stage_bytes;
    if constexpr (Shape::kPairs) {
      gpu::WaitForCopies<0>();
      SyncThreads(1 + team, kTeamThreads);
      // The team's slowest warp may still be multiplying the halo of the last turn, none that of the turn before.
      char* const pairs = halos + (turns.Left() & 1) * halo_bytes;
      const gpu::HaloPlace place = gpu::PlaceOfHalo(gemm, plan, taps, from, tile);
      if (gemm.source_type == gpu::Element::kF32) {
        MakePairs<T, float>(gemm, plan, place, thread, halo, pairs);
      } else {
        MakePairs<T, T>(gemm, plan, place, thread, halo, pairs);
      }
      FenceAsyncProxy();
      SyncThreads(1 + team, kTeamThreads);
      load(tile + stride, 0);
      __syncwarp();
      halo = pairs;
    } else {
#ifdef DN_NOLOAD
      if (parity == 0)
#endif
      barriers[team][stage].Wait(parity);
    }
    HaloSums<Shape> sums;
#pragma unroll
    for (auto& block_sums : sums) {
#pragma unroll
      for (float& sum : block_sums) sum = 0.0f;
    }
#ifndef DN_NOTURNS
    turns.Take();
#endif
#ifndef DN_NOPRODUCTS
    StartProducts<Shape>(plan, block, halo, weight, weight_parts, sums);
#endif
#ifndef DN_NOTURNS
    turns.Pass();
#else
    turns.Skip();
#endif
    WaitForProducts<0>();
#pragma unroll
    for (auto& block_sums : sums) PinSums(block_sums);
    if constexpr (!Shape::kPairs) {
      SyncThreads(1 + team, kTeamThreads);
#ifndef DN_NOLOAD
      load(tile + plan.stages * stride, stage);
#endif
      __syncwarp();
      if (++stage == plan.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
#ifdef DN_NOSTORE
    if (gemm.batch > 0) { if (sums[0][0] == 123456.f) reinterpret_cast<float*>(shared)[0] = 1; continue; }
#endif
    StoreTile<Shape>(gemm, plan, block, tile, thread, bias, sums);
  }
}

}  // namespace knnconv::hopper
