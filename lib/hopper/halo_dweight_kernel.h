// Weight gradients of few channels on Hopper, each tile's halo of x and its pixels of g in shared memory once:
//
//     dw[tap, c, o] = sum over pixels p:  x[p's place + offset(tap), c] * g[p, o]
//     db[o] = sum over pixels p:  g[p, o]
//
//         rows o              columns (tap, channel)
//         [ g's tile ]^T  @  [ x's halo, moved by the tap ]        depth: 16 pixels a step
//
// Both operands lie in shared memory as cores of wgmma with pixels along the depth (halo_plan.h): a tap moves the address
// of x and nothing is copied twice. A team of 128 threads holds all of dw for 64 columns in registers while it walks over
// its tiles; at the end a block's two teams are added up. db is added up by threads.
//
// What bounds it: x and g once through memory, and products of 64 rows where g has fewer columns.
#pragma once

#include <cstdint>

#include "gpu/async_copy.h"
#include "gpu/dweight_plan.h"
#include "gpu/halo_dweight_sums.h"
#include "gpu/halo_stage.h"
#include "hopper/halo_dweight_plan.h"
#include "hopper/ptx.h"
#include "hopper/wgmma.h"

namespace knnconv::hopper {

inline constexpr int kGroupRows = kGroupChunks * gpu::kHaloChunk;  // of dw

using HaloDweightSums = float[kDweightGroups][kGroupRows / 2];

// A thread block's place. The same in all threads.
struct HaloSlice : gpu::HaloTaps {
  const char* source;
  const char* cotangent;
  int first_column, part;
  uint32_t number;  // (group, part)
};

template <typename T>
KNNCONV_DEVICE HaloSlice OpenSlice(const gpu::Dweight& dweight, const gpu::TapGemm& forward,
                                   const HaloDweightPlan& plan) {
  HaloSlice slice;
  slice.first_column = static_cast<int>(blockIdx.x % plan.column_tiles) * kDweightColumns;
  slice.number = blockIdx.x / plan.column_tiles;
  slice.part = static_cast<int>(slice.number % plan.slices);
  const uint32_t group = slice.number / plan.slices;
  slice.source = static_cast<const char*>(dweight.x) + dweight.x_groups.Offset(forward.groups, group) * sizeof(T);
  slice.cotangent = static_cast<const char*>(dweight.g) + dweight.g_groups.Offset(forward.groups, group) * sizeof(T);
  static_cast<gpu::HaloTaps&>(slice) = gpu::FindTaps(forward, plan, 0);
  return slice;
}

// Copies the thread's share of a tile's pixels of g.
KNNCONV_DEVICE void CopyCotangent(const gpu::TapGemm& forward, const HaloDweightPlan& plan, const HaloSlice& slice,
                                  int tile_number, int thread, char* to) {
  const gpu::HaloTile tile = gpu::FindTile(plan, tile_number);
  const int64_t first = tile.image * forward.nodes + int64_t{tile.i} * slice.size[1] + tile.j;
  const char* const from = slice.cotangent + (first * forward.columns + slice.first_column) * 2;
  const int left = (forward.columns - slice.first_column) / gpu::kHaloChunk;
#pragma unroll 4
  for (int unit = thread; unit < kDweightPixels * plan.cotangent_chunks; unit += kTeamThreads) {
    const gpu::Divisor::Result pixel = plan.by_cotangent_chunks.Divide(unit);
    const gpu::Divisor::Result line = plan.by_width.Divide(pixel.quotient);
    const int chunk = pixel.remainder;
    const int64_t row = int64_t{line.quotient} * slice.size[1] + line.remainder;
    const char* const at = from + (row * forward.columns + chunk * gpu::kHaloChunk) * 2;
    gpu::CopyAsync16(to + chunk * plan.cotangent_pitch + pixel.quotient * 16, chunk < left ? at : from, chunk < left);
  }
}

// Adds a tile's products.
template <typename T>
KNNCONV_DEVICE void MultiplyTile(const gpu::TapGemm& forward, const HaloDweightPlan& plan, const char* cotangent,
                                 const char* halo, HaloDweightSums& sums) {
  uint64_t a = DescribeCores(cotangent, 128, plan.cotangent_pitch), b[kDweightGroups];
#pragma unroll
  for (int group = 0; group < kDweightGroups; ++group) {
    // Groups that dw lacks repeat the first, and are not stored.
    const int taps = group / plan.pieces, across = taps < forward.window.kernel[1] ? taps : 0;
    const gpu::Divisor::Result place = plan.by_step.Divide(across * forward.window.dilation[1]);
    const int at = place.remainder * plan.plane_pitch + place.quotient * plan.pixel_pitch +
                   group % plan.pieces * kGroupChunks * plan.chunk_pitch;
    b[group] = DescribeCores(halo + at, plan.lead, plan.chunk_pitch);
  }
#pragma unroll 1
  for (int step = 0; step < plan.steps; ++step) {
    FenceProducts();
#pragma unroll
    for (int group = 0; group < kDweightGroups; ++group) {
      MultiplyAdd<T, kGroupRows, Major::kMN, Major::kMN>(sums[group], a, b[group]);
      b[group] += plan.step_pitch / 16;
    }
    a += 2 * 128 / 16;
    CommitProducts();
    WaitForProducts<1>();
  }
  WaitForProducts<0>();
#pragma unroll
  for (auto& group : sums) PinSums(group);
}

// Adds the thread's share of a tile of g: 8 columns, every so manyth pixel.
template <typename T>
KNNCONV_DEVICE void AddCotangent(const HaloDweightPlan& plan, const char* cotangent, int thread,
                                 float (&bias)[gpu::kHaloChunk]) {
  constexpr int kChunks = kDweightColumns / gpu::kHaloChunk;
  const int chunk = thread % kChunks;
  if (chunk >= plan.cotangent_chunks) return;
#pragma unroll 2
  for (int pixel = thread / kChunks; pixel < kDweightPixels; pixel += kTeamThreads / kChunks) {
    gpu::HaloChunk<T> line;
    line.bits = *reinterpret_cast<const uint4*>(cotangent + chunk * plan.cotangent_pitch + pixel * 16);
#pragma unroll
    for (int e = 0; e < gpu::kHaloChunk; ++e) bias[e] += gpu::ToFloat(line.value[e]);
  }
}

// Writes a slice's sums.
KNNCONV_DEVICE void StoreSums(const gpu::Dweight& dweight, const gpu::TapGemm& forward, const HaloDweightPlan& plan,
                              const HaloSlice& slice, int thread, const HaloDweightSums& sums) {
  const int lane = thread % 32, first_column = slice.first_column + thread / 32 * 16 + lane / 4;
  float* const out = dweight.partials + int64_t{slice.number} * dweight.slots * dweight.channels * dweight.columns;
#pragma unroll
  for (int group = 0; group < kDweightGroups; ++group) {
    const int across = group / plan.pieces;
    if (across >= forward.window.kernel[1]) break;
#pragma unroll
    for (int j = 0; j < kGroupChunks; ++j) {
      const gpu::Divisor::Result down = plan.by_chunks.Divide(group % plan.pieces * kGroupChunks + j);
      if (down.quotient >= forward.window.kernel[0]) break;
      const int64_t slot = int64_t{down.quotient} * forward.window.kernel[1] + across;
      const int channel = down.remainder * gpu::kHaloChunk + lane % 4 * 2;
      float* const row = out + (slot * dweight.channels + channel) * dweight.columns;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first_column + i / 2 * 8;
        if (column < dweight.columns) row[i % 2 * dweight.columns + column] = sums[group][j * 4 + i];
      }
    }
  }
}

// Adds the second team's sums to the first's.
KNNCONV_DEVICE void AddTeams(int team, float* scratch, HaloDweightSums& sums) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kDweightGroups * kGroupRows / 2; ++i) {
    if (team == 1) scratch[i * kTeamThreads] = sums[i / (kGroupRows / 2)][i % (kGroupRows / 2)];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kDweightGroups * kGroupRows / 2; ++i) {
    if (team == 0) sums[i / (kGroupRows / 2)][i % (kGroupRows / 2)] += scratch[i * kTeamThreads];
  }
}

// Writes the columns of g that threads have added up, in the threads' order.
KNNCONV_DEVICE void StoreBias(const gpu::Dweight& dweight, const HaloDweightPlan& plan, const HaloSlice& slice,
                              float* scratch, const float (&bias)[gpu::kHaloChunk]) {
  constexpr int kChunks = kDweightColumns / gpu::kHaloChunk, kShares = kDweightTeams * kTeamThreads / kChunks;
  float* const line = scratch + threadIdx.x / kChunks * kDweightColumns + threadIdx.x % kChunks * gpu::kHaloChunk;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < gpu::kHaloChunk; ++e) line[e] = bias[e];
  __syncthreads();
  const int column = slice.first_column + threadIdx.x;
  if (threadIdx.x >= kDweightColumns || column >= dweight.columns) return;
  float sum = 0.0f;
  for (int share = 0; share < kShares; ++share) sum += scratch[share * kDweightColumns + threadIdx.x];
  plan.bias_partials[int64_t{slice.number} * dweight.columns + column] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kDweightTeams* kTeamThreads, 1)
    HaloDweightKernel(const __grid_constant__ gpu::Dweight dweight, const __grid_constant__ gpu::TapGemm forward,
                      const __grid_constant__ HaloDweightPlan plan) {
  KNNCONV_DYNAMIC_SHARED(shared);
  const HaloSlice slice = OpenSlice<T>(dweight, forward, plan);
  const int team = threadIdx.x / kTeamThreads, thread = threadIdx.x % kTeamThreads;
  const int stride = static_cast<int>(plan.slices) * kDweightTeams;
  char* stage = shared + 2 * team * plan.stage_bytes;
  char* other = stage + plan.stage_bytes;
  const auto copy = [&](int tile, char* to) {
    if (tile < plan.all_tiles) {
      gpu::StageHalo(forward, plan, slice, slice.source, tile, thread, to + plan.cotangent_bytes);
      CopyCotangent(forward, plan, slice, tile, thread, to);
    }
    gpu::CommitCopies();
  };
  HaloDweightSums sums = {};
  float bias[gpu::kHaloChunk] = {};
  int tile = slice.part * kDweightTeams + team;
  copy(tile, stage);
#pragma unroll 1
  for (; tile < plan.all_tiles; tile += stride) {
    gpu::WaitForCopies<0>();
    FenceAsyncProxy();
    SyncThreads(1 + team, kTeamThreads);  // also, all warps are done with the other stage
    copy(tile + stride, other);
    MultiplyTile<T>(forward, plan, stage, stage + plan.cotangent_bytes, sums);
    if (plan.bias_partials != nullptr) AddCotangent<T>(plan, stage, thread, bias);
    char* const swap = stage;
    stage = other;
    other = swap;
  }
  AddTeams(team, reinterpret_cast<float*>(shared) + thread, sums);
  if (team == 0) StoreSums(dweight, forward, plan, slice, thread, sums);
  if (plan.bias_partials != nullptr) StoreBias(dweight, plan, slice, reinterpret_cast<float*>(shared), bias);
}

}  // namespace knnconv::hopper
