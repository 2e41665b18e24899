// Defines LaunchStemDinput; included by the sources that instantiate it.
#pragma once

#include "gpu/dependent_launch.h"
#include "hopper/stem_dinput_kernel.h"

namespace knnconv::hopper {

template <typename T>
gpu::Status LaunchStemDinput(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const StemDinputPlan& plan,
                             int shared_limit) {
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    return gpu::LaunchDependentSized<StemDinputKernel<Shape>>(site, gemm.groups.count() * gemm.batch, Shape::kThreads,
                                                              plan.bytes, shared_limit, gemm, plan);
  };
  return gemm.depth > 64 ? launch(StemShape<T, 3>()) : launch(StemShape<T, 2>());
}

}  // namespace knnconv::hopper
