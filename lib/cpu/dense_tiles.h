// Dense forward and dinput as tiles: output pixels of one residue class share their taps.
#pragma once

#include <cstdint>

#include "common/window.h"
#include "cpu/operands.h"
#include "cpu/panels.h"

namespace knnconv::cpu {

// One pass over all groups: out[b, pixel, :] = bias + sum over taps:  source[b, tap's pixel, :] @ packed[tap's slot]
struct DensePass {
  ffi::AnyBuffer source;  // [groups, batch, H, W, D]
  ffi::AnyBuffer weight;
  const float* packed;
  const float* bias;  // null when absent
  Dims bias_dims;
  ffi::AnyBuffer out;  // [groups, batch, H', W', P]
  Source read;
  const Panels& panels;
  const Groups& groups;
  const WindowPlan& plan;
};

void RunDensePass(ffi::ThreadPool& pool, const DensePass& pass);

}  // namespace knnconv::cpu
