// Forward over a table without slots for up to 4 channels, such as the first layer of a network: the kernel of
// stem_kernel.h, and when it runs.
#pragma once

#include "gpu/device.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kStemChannels = 4;  // of a source row, as shared memory holds it
inline constexpr int kStemSamples = 2;   // that a block computes together
inline constexpr int kStemWarps = 8;

struct StemPlan {
  uint32_t column_tiles, sample_pairs;
  int32_t parts;         // blocks that share a pair's rows
  int32_t row_tiles;     // of 16 rows
  int32_t steps;         // of 4 taps
  int32_t sample_bytes;  // of one sample's source in shared memory, and a row of zeros
  int32_t weight_at, source_at, bytes;  // places in shared memory; the bias begins at 0
  bool vector_weight;    // 16-byte loads are possible
};

// Whether the stem kernel is to compute `gemm`: where it can if `forced`, else where it is expected to be the fastest,
// too; and how it is laid out.
bool ChooseStem(const TapGemm& gemm, const Device& device, bool forced, StemPlan* plan);

// Products of 8 columns in a tile.
constexpr int StemProducts(int columns) { return columns <= 32 ? 4 : columns <= 64 || columns > 96 ? 8 : 12; }

// Instantiated in a source of its own for each type of products.
template <typename T>
Status LaunchStem(const LaunchSite& site, const TapGemm& gemm, const StemPlan& plan, int shared_limit);
extern template Status LaunchStem<Half>(const LaunchSite&, const TapGemm&, const StemPlan&, int);
extern template Status LaunchStem<BFloat>(const LaunchSite&, const TapGemm&, const StemPlan&, int);

inline Status RunStem(const LaunchSite& site, const TapGemm& gemm, const Device& device, const StemPlan& plan) {
  return gemm.compute_type == Element::kF16 ? LaunchStem<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchStem<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
