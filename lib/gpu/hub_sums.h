// dinput's rows of hubs: sources with more than kHubTaps taps, which RunTapGemm leaves out.
//
// The source order is cut into units of kHubTaps taps. A hub shares a unit with at most one other, so each unit gives
// two rows of partial sums at most: row 0 of the hub that its first tap belongs to, row 1 of the one that its last tap
// belongs to, if that is another. A second kernel adds a hub's rows, or where units are few, one kernel does both. Work
// units are bounded and the order of the sums is fixed. Finding a unit's hubs is a search, so that of more than a few
// nodes a kernel in front asks each whether it is one: most tables have none.
#pragma once

#include <cstdint>

#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

// Elements of the partial sums of `taps` taps in each group; none where no node can be a hub.
inline int64_t HubPartials(const TapGemm& gemm, int64_t taps) {
  if (taps <= kHubTaps) return 0;
  return gemm.groups.count() * 2 * ((taps + kHubTaps - 1) / kHubTaps) * gemm.batch * gemm.columns;
}

// Writes the hubs' rows of a kSources `gemm` whose lists have room for `taps` taps; `partials` holds HubPartials
// floats.
Status RunHubSums(const LaunchSite& site, const TapGemm& gemm, int64_t taps, float* partials);

}  // namespace knnconv::gpu
