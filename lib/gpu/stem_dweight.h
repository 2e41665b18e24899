// Weight gradients over a table without slots for up to 4 channels: the kernel of stem_dweight_kernel.h, and when it
// runs.
#pragma once

#include "gpu/device.h"
#include "gpu/dweight.h"
#include "gpu/dweight_reduce.h"
#include "gpu/stem.h"

namespace knnconv::gpu {

inline constexpr int kStemDweightWarps = 16;
inline constexpr int kStemSlots = 8;       // of a warp
inline constexpr int kStemPositions = 64;  // rows of g of each sample that are staged at a time
// In shared memory begin 16 bytes of zeros, 16 of ones, and x.
inline constexpr int kStemZerosAt = 0, kStemOnesAt = 16, kStemSourceAt = 32;

// Tiles of 16 columns that a warp's registers hold, of dw's slots with so many channels.
constexpr int StemDweightTiles(int channels, int columns) {
  return columns <= 32 ? 2 : columns <= 64 || columns > 96 || channels > 3 ? 4 : 6;
}

// Channels whose products a warp computes, whether x has them or not.
constexpr int StemDweightChannels(int channels) { return channels <= 3 ? 3 : kStemChannels; }

// Bytes from a staged row of g to the next: 8 rows' 16 bytes lie in different banks.
constexpr int StemCotangentPitch(int columns) { return columns * 2 + 16; }

struct StemDweightPlan {
  uint32_t row_tiles, column_tiles;
  int32_t slot_warps;         // of a block, which have different slots; the rest of its warps share theirs
  int32_t samples;            // of a slice, which a block computes together
  int32_t step_ways;          // of warps that share a sample's steps
  uint32_t slices;
  int32_t sample_bytes;       // of one sample's x in shared memory
  int32_t source_at, stage_at, stage_bytes, bytes;  // places in shared memory
  float* bias_partials;       // [groups, slices, columns], or null; dw's are [groups, slices, V * C, columns]
};

// Whether the kernel is to compute `dweight`: where it can if `forced`, else where it is expected to be the fastest,
// too; and how it is laid out.
bool ChooseStem(const Dweight& dweight, const ColumnTaps& taps, const Device& device, bool forced,
                StemDweightPlan* plan);

// Launches the first kernel. Instantiated in a source of its own for each type of products.
template <typename T>
Status LaunchStemDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps,
                         const StemDweightPlan& plan, int shared_limit);
extern template Status LaunchStemDweight<Half>(const LaunchSite&, const Dweight&, const ColumnTaps&,
                                               const StemDweightPlan&, int);
extern template Status LaunchStemDweight<BFloat>(const LaunchSite&, const Dweight&, const ColumnTaps&,
                                                 const StemDweightPlan&, int);

inline Status RunStem(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps, const Device& device,
                      const StemDweightPlan& plan) {
  KNNCONV_GPU_RETURN_IF_ERROR(dweight.g_type == Element::kF16
                                  ? LaunchStemDweight<Half>(site, dweight, taps, plan, device.shared_bytes)
                                  : LaunchStemDweight<BFloat>(site, dweight, taps, plan, device.shared_bytes));
  return RunReduce(site, dweight, plan.slices, 1);
}

}  // namespace knnconv::gpu
