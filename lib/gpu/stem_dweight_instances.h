// Defines LaunchStemDweight; included by the sources that instantiate it.
#pragma once

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
  const bool whole = dweight.channels > 3;
  switch (StemDweightTiles(dweight.channels, dweight.columns)) {
    case 2:
      return whole ? launch(StemDweightShape<T, 2, 4>()) : launch(StemDweightShape<T, 2, 3>());
    case 4:
      return whole ? launch(StemDweightShape<T, 4, 4>()) : launch(StemDweightShape<T, 4, 3>());
    default:
      return launch(StemDweightShape<T, 6, 3>());
  }
}

}  // namespace knnconv::gpu
