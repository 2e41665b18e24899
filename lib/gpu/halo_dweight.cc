#include "gpu/halo_dweight.h"

namespace knnconv::gpu {

bool ChooseHalo(const Dweight& dweight, const DenseTaps& taps, const Device& device, bool forced,
                HaloDweightPlan* plan) {
  // With fewer pixels a tile, partial sums outweigh the products: 8x8, 32 -> 32 takes 1.4 of the portable kernel's
  // time.
  constexpr int kMostDepth = 32, kMostColumns = 64, kLeastPixels = 128;
  const bool few = dweight.channels <= kMostDepth && dweight.columns <= kMostColumns;
  if (!forced && (!few || dweight.slots < 2)) return false;
  const int64_t pixels = dweight.batch * taps.in_size[0] * taps.in_size[1];
  const bool empty = pixels == 0 || taps.out_size[0] == 0 || taps.out_size[1] == 0 || dweight.slots == 0 ||
                     dweight.channels == 0 || dweight.columns == 0;
  if (empty || dweight.shapes.members.count() != 1) return false;
  if (!PlanHaloDweight(dweight, ForwardOf(dweight, taps), device.multiprocessors, device.shared_bytes, plan)) {
    return false;
  }
  return forced || (plan->row_tiles == 1 && plan->tile[0] * plan->tile[1] >= kLeastPixels);
}

}  // namespace knnconv::gpu
