// dinput of a table for 3 channels of x, such as the first layer of a network, on Hopper: two kernels, of
// gpu/stem_order.cu and stem_dinput_kernel.h, and when they run. A thread block has one sample, as in
// gpu/stem_dinput.h; products are wgmma's, and the sums of all sources lie in registers.
#pragma once

#include "gpu/stem_dinput.h"

namespace knnconv::hopper {

inline constexpr int kStemChannels = 3;
inline constexpr int kStemSlots = 64;  // a set of them, whose channels are 3 tiles of 64 rows
inline constexpr int kMostStemSlots = 2 * kStemSlots;
inline constexpr int kStemRows = 64;   // of g that a product has
inline constexpr int kStemWarpgroups = 4;
inline constexpr int kMostStemNodes = 4096;  // whose sums a block's registers hold

struct StemDinputPlan : gpu::StemDinputPlan {
  int32_t sets;         // of slots, whose products two warpgroups compute, or all four where there is one
  int32_t plane_bytes;  // from 8 channels of all staged rows of g to the next 8
};

// Whether these kernels are to compute `gemm`: where they can if `forced`, else where they are expected to be the
// fastest, too; and how they are laid out.
bool ChooseStem(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, StemDinputPlan* plan);

// Instantiated in a source of its own for each type of products.
template <typename T>
gpu::Status LaunchStemDinput(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const StemDinputPlan& plan,
                             int shared_limit);
extern template gpu::Status LaunchStemDinput<gpu::Half>(const gpu::LaunchSite&, const gpu::TapGemm&,
                                                        const StemDinputPlan&, int);
extern template gpu::Status LaunchStemDinput<gpu::BFloat>(const gpu::LaunchSite&, const gpu::TapGemm&,
                                                          const StemDinputPlan&, int);

// Writes all rows, those of hubs too.
inline gpu::Status RunStemDinput(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device,
                                 const StemDinputPlan& plan) {
  KNNCONV_GPU_RETURN_IF_ERROR(gpu::LaunchStemOrder(site, gemm, plan));
  return gemm.compute_type == gpu::Element::kF16
             ? LaunchStemDinput<gpu::Half>(site, gemm, plan, device.shared_bytes)
             : LaunchStemDinput<gpu::BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::hopper
