// Defines LaunchStem; included by the sources that instantiate it.
#pragma once

#include "gpu/stem_kernel.h"

namespace knnconv::gpu {

template <typename T>
Status LaunchStem(const LaunchSite& site, const TapGemm& gemm, const StemPlan& plan, int shared_limit) {
  const int64_t blocks = gemm.groups.count() * plan.column_tiles * plan.sample_pairs * plan.parts;
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    return LaunchSized<StemKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, shared_limit, gemm, plan);
  };
  switch (StemProducts(gemm.columns)) {
    case 4:
      return launch(StemShape<T, 4>());
    case 8:
      return launch(StemShape<T, 8>());
    default:
      return launch(StemShape<T, 12>());
  }
}

}  // namespace knnconv::gpu
