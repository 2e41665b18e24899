// What GPU handlers share: contexts of a call, operands as kernels want them, statuses as ffi::Error, and the macro
// that defines a handler's two stages.
#pragma once

#include <cstdint>
#include <string>

#include "common/ffi.h"
#include "common/layout.h"
#include "gpu/elements.h"
#include "gpu/groups.h"
#include "gpu/launch.h"

namespace knnconv::gpu {

using Buffer = ffi::AnyBuffer;
using ResultBuffer = ffi::Result<ffi::AnyBuffer>;

// An absent optional operand or result has shape [0].
inline bool IsAbsent(const Buffer& operand) {
  const Dims dims = operand.dimensions();
  return dims.size() == 1 && dims[0] == 0;
}

inline Element ToElement(ffi::DataType type) { return static_cast<Element>(ToDtype(type)); }

inline bool Is16Bit(ffi::DataType type) { return type == ffi::DataType::F16 || type == ffi::DataType::BF16; }

inline GroupShape ToShape(const Groups& groups) {
  GroupShape shape;
  shape.rank = groups.rank();
  for (int i = 0; i < shape.rank; ++i) shape.size[i] = groups.size(i);
  return shape;
}

// Strides of an operand whose matrices (all that follows the `rank` group dimensions) have `matrix` elements.
inline GroupStrides StridesOf(int rank, Dims dims, int64_t matrix) {
  GroupStrides strides;
  for (int i = rank - 1; i >= 0; --i) {
    strides.step[i] = dims[i] == 1 ? 0 : matrix;
    matrix *= dims[i];
  }
  return strides;
}

inline ffi::Error ToError(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(status.file) + ":" + std::to_string(status.line) + ": " + status.call + ": " +
                              gpuGetErrorString(status.code));
}

// Stages call `Run<stage>(stream, device ordinal, ...)` with the same operands; it builds a LaunchSite and launches.
template <ffi::ExecutionStage kStage>
LaunchSite SiteOf(gpuStream_t stream, int32_t device) {
  return {stream, device, kStage == ffi::ExecutionStage::kInitialize};
}

template <ffi::ExecutionStage kStage>
auto BindStage() {
  return ffi::Ffi::Bind<kStage>().template Ctx<ffi::PlatformStream<gpuStream_t>>().template Ctx<ffi::DeviceOrdinal>();
}

}  // namespace knnconv::gpu

// Defines handlers `name` (execute) and name##Initialize from templates over the stage: `run<stage>`, the function, and
// `binding<stage>()`, its operands. Both may be captured into CUDA graphs.
#define KNNCONV_DEFINE_HANDLER(name, run, binding)                                                                \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, run<::xla::ffi::ExecutionStage::kExecute>,                                  \
                                binding<::xla::ffi::ExecutionStage::kExecute>(),                                  \
                                {::xla::ffi::Traits::kCmdBufferCompatible});                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name##Initialize, run<::xla::ffi::ExecutionStage::kInitialize>,                   \
                                binding<::xla::ffi::ExecutionStage::kInitialize>())
