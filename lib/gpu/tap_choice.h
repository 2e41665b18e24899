// Which kernel computes a TapGemm, and how it is laid out.
//
// Everything here and in what it asks (halo.h, stem.h, stem_dinput.h, those of hopper/) follows from shapes, types, the
// alignment of operands and the device's description: no kernel, no driver and no GPU is needed. RunTapGemm does
// what is decided here; Python asks the same (lib/cuda/rules.cc).
#pragma once

#include <variant>

#include "gpu/device.h"
#include "gpu/halo_plan.h"
#include "gpu/stem.h"
#include "gpu/stem_dinput.h"
#include "gpu/tap_gemm_launch.h"
#include "hopper/halo_plan.h"
#include "hopper/stem_dinput.h"
#include "hopper/tap_choice.h"

namespace knnconv::gpu {

// The portable kernels', the halo kernels', the stem kernels' of forward, Hopper's, and its halo kernels', the stem
// kernels' of dinput, and Hopper's of them.
using TapDecision = std::variant<TapLaunch, HaloPlan, StemPlan, hopper::TapForm, hopper::HaloPlan, StemDinputPlan,
                                 hopper::StemDinputPlan>;

// Decides within what `wanted` allows. An error where no kernel can do that.
Status ChooseTapGemm(const TapGemm& gemm, const Device& device, const TileChoice& wanted, TapDecision* decision);

}  // namespace knnconv::gpu
