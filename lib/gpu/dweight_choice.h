// Which kernel computes a weight gradient, and how it is laid out.
//
// Everything here and in what it asks (dweight_plan.h, halo_dweight.h, stem_dweight.h, hopper/dweight_choice.h) follows
// from shapes, types, the alignment of operands and the device's description: no kernel, no driver and no GPU is
// needed. RunDweight does what is decided here; Python asks the same (lib/cuda/rules.cc).
#pragma once

#include <variant>

#include "gpu/device.h"
#include "gpu/dweight_launch.h"
#include "gpu/halo_dweight_plan.h"
#include "gpu/stem_dweight.h"
#include "hopper/dweight_choice.h"
#include "hopper/halo_dweight_plan.h"

namespace knnconv::gpu {

// The portable kernels', the halo kernels', the stem kernels', Hopper's, and its halo kernels'.
using DweightDecision = std::variant<DweightLaunch, HaloDweightPlan, StemDweightPlan, hopper::DweightPlan,
                                     hopper::HaloDweightPlan>;

// Decides within what `wanted` allows. An error where no kernel can do that.
Status ChooseDweight(const Dweight& dweight, const DenseTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision);
Status ChooseDweight(const Dweight& dweight, const ColumnTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision);
Status ChooseDweight(const Dweight& dweight, const SlotTaps& taps, const Device& device, const DweightChoice& wanted,
                     DweightDecision* decision);

}  // namespace knnconv::gpu
