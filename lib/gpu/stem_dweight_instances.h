// Defines LaunchStemDweight; included by the sources that instantiate it.
#pragma once

#include "gpu/stem.h"
#include "gpu/stem_dweight_kernel.h"

namespace knnconv::gpu {

template <typename T>
Status LaunchStemDweight(const LaunchSite& site, const Dweight& dweight, const ColumnTaps& taps,
                         const StemDweightPlan& plan, int shared_limit) {
  const int64_t blocks = dweight.shapes.groups.count() * plan.slices * plan.row_tiles * plan.column_tiles;
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    return LaunchSized<StemDweightKernel<Shape>>(site, blocks, Shape::kThreads, plan.bytes, shared_limit, dweight, taps,
                                                 plan);
  };
  switch (StemProducts(dweight.columns)) {
    case 4:
      return launch(StemDweightShape<T, 4>());
    case 8:
      return launch(StemDweightShape<T, 8>());
    default:
      return launch(StemDweightShape<T, 12>());
  }
}

}  // namespace knnconv::gpu
