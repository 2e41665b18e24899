// Parts of the portable kernels' main loops that a build may leave out, to see what share of the time each takes.
// benchmarks/knockout.py builds so; results are then wrong, and no module is ever built so.
#pragma once

namespace knnconv::gpu {

#if defined(KNNCONV_WITHOUT_PRODUCTS)
inline constexpr bool kHasProducts = false;  // nor the loads of their fragments
#else
inline constexpr bool kHasProducts = true;
#endif

#if defined(KNNCONV_WITHOUT_GATHERS)
inline constexpr bool kHasGathers = false;  // asynchronous copies of x's rows, or g's
#else
inline constexpr bool kHasGathers = true;
#endif

#if defined(KNNCONV_WITHOUT_BARRIERS)
inline constexpr bool kHasBarriers = false;  // once a step, for copies to arrive and for the block's other warps
#else
inline constexpr bool kHasBarriers = true;
#endif

}  // namespace knnconv::gpu
