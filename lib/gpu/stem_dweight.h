// Weight gradients over a table without slots for up to 4 channels: the kernel of stem_dweight_kernel.h, and when it
// runs.
#pragma once

#include "gpu/device.h"
#include "gpu/divisor.h"
#include "gpu/dweight.h"
#include "gpu/dweight_reduce.h"

namespace knnconv::gpu {

inline constexpr int kStemPositions = 32;  // rows of g of each sample that are staged at a time

// Units of 2 slots that a warp holds of dw, by products of 8 columns: what its registers hold.
constexpr int StemUnits(int products) { return products > 8 ? 3 : 4; }

struct StemDweightPlan {
  uint32_t row_tiles, column_tiles;
  int32_t samples;            // of a slice, which a block computes together
  uint32_t slices;
  int32_t sample_bytes;       // of one sample's x in shared memory
  int32_t cotangent_pitch, cotangent_bytes;       // of a row of g, and of one sample's rows of a stage
  int32_t source_at, stage_at, stage_bytes, bytes;  // places in shared memory, after 16 bytes of zeros
  float* bias_partials;       // [groups, slices, columns], or null; dw's are [groups, slices, V * C, columns]
  Divisor by_depth;
};

// Whether the kernel is to compute `dweight`: where it can if `forced`, else where it is expected to be the fastest, too;
// and how it is laid out.
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
