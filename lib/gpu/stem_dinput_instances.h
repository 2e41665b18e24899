// Defines LaunchStemDinput; included by the sources that instantiate it.
#pragma once

#include "gpu/dependent_launch.h"
#include "gpu/stem_dinput_kernel.h"

namespace knnconv::gpu {

template <typename T>
Status LaunchStemDinput(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan, int shared_limit) {
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    return LaunchDependentSized<StemDinputKernel<Shape>>(site, gemm.groups.count() * gemm.batch, Shape::kThreads,
                                                         plan.bytes, shared_limit, gemm, plan);
  };
  static_assert(kMostStemDepth == 96);
  const bool wide = gemm.depth > 64;
  switch (gemm.columns) {
    case 1:
      return wide ? launch(StemDinputShape<T, 1, 3>()) : launch(StemDinputShape<T, 1, 2>());
    case 2:
      return wide ? launch(StemDinputShape<T, 2, 3>()) : launch(StemDinputShape<T, 2, 2>());
    case 3:
      return wide ? launch(StemDinputShape<T, 3, 3>()) : launch(StemDinputShape<T, 3, 2>());
    default:
      return wide ? launch(StemDinputShape<T, 4, 3>()) : launch(StemDinputShape<T, 4, 2>());
  }
}

}  // namespace knnconv::gpu
