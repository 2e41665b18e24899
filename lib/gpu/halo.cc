#include "gpu/halo.h"

namespace knnconv::gpu {

bool ChooseHalo(const TapGemm& gemm, const Device& device, bool forced, HaloPlan* plan) {
  constexpr int kLeastPixels = 128;  // of a tile
  if (gemm.kind != Taps::kWindow || gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0) return false;
  const bool few = (gemm.depth <= 32 && gemm.columns <= 64) || (gemm.depth <= 64 && gemm.columns <= 32);
  if (!forced && (!few || gemm.slots < 2)) return false;
  if (!PlanHalo(gemm, device.multiprocessors, device.shared_bytes, plan)) return false;
  // A block that is alone on its multiprocessor does not hide its copies, and a tile that an image does not fill wastes
  // products: on 8x8 pixels, 32 -> 32, dinput takes 1.1 of the portable kernel's time.
  return forced || (plan->bytes <= device.shared_bytes / 2 && plan->tile[0] * plan->tile[1] >= kLeastPixels);
}

}  // namespace knnconv::gpu
