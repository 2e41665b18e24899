// A thread casts eight elements: two 16-byte loads, one 16-byte store. Bound by memory.
#include "gpu/cast_operands.h"

#include <cmath>

#include "gpu/arithmetic.h"
#include "gpu/fault.h"

namespace knnconv::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // a thread

template <typename T>
KNNCONV_DEVICE float LargestFinite();
template <>
KNNCONV_DEVICE float LargestFinite<Half>() {
  return 65504.0f;
}
template <>
KNNCONV_DEVICE float LargestFinite<BFloat>() {
  return __uint_as_float(0x7f7f0000);
}

// Comparisons, so that NaN passes: fminf and fmaxf would turn it into a number.
template <typename T>
KNNCONV_DEVICE float Clip(float value) {
  const float largest = LargestFinite<T>();
  if (kFault == Fault::kFminf) return fminf(fmaxf(value, -largest), largest);
  return value > largest ? largest : value < -largest ? -largest : value;
}

template <typename T>
KNNCONV_DEVICE T Cast(float value, bool clip) {
  return FromFloat<T>(clip ? Clip<T>(value) : value);
}

struct CastSide {
  const float* from;
  void* to;
  int64_t size;
  bool vectors;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) CastKernel(CastSide cotangent, CastSide input, int64_t cotangent_blocks) {
  const bool is_cotangent = blockIdx.x < cotangent_blocks + (kFault == Fault::kCastBoundary ? 1 : 0);
  const bool clip = is_cotangent || kFault == Fault::kClippedInputs;
  const CastSide side = is_cotangent ? cotangent : input;
  const int64_t block = is_cotangent ? blockIdx.x : blockIdx.x - cotangent_blocks;
  const int64_t at = (block * kThreads + threadIdx.x) * kElements;
  const float* const from = side.from + at;
  T* const to = static_cast<T*>(side.to) + at;
  if (side.vectors && at + kElements <= side.size) {
    const float4 low = ReadOnly(reinterpret_cast<const float4*>(from));
    const float4 high = ReadOnly(reinterpret_cast<const float4*>(from) + 1);
    struct alignas(16) Vector {
      T value[kElements];
    };
    const Vector cast{{Cast<T>(low.x, clip), Cast<T>(low.y, clip), Cast<T>(low.z, clip), Cast<T>(low.w, clip),
                       Cast<T>(high.x, clip), Cast<T>(high.y, clip), Cast<T>(high.z, clip), Cast<T>(high.w, clip)}};
    *reinterpret_cast<Vector*>(to) = cast;
    return;
  }
  for (int i = 0; i < kElements && at + i < side.size; ++i) to[i] = Cast<T>(from[i], clip);
}

CastSide ToSide(const CastOperand& operand) {
  return {operand.from, operand.to, operand.size, IsAligned(operand.from) && IsAligned(operand.to)};
}

int64_t Blocks(int64_t size) { return (size + kThreads * kElements - 1) / (kThreads * kElements); }

}  // namespace

Status RunCast(const LaunchSite& site, Element type, const CastOperand& cotangent, const CastOperand& input) {
  const int64_t cotangent_blocks = Blocks(cotangent.size), blocks = cotangent_blocks + Blocks(input.size);
  const CastSide g = ToSide(cotangent), x = ToSide(input);
  if (type == Element::kF16) return Launch<CastKernel<Half>, 0>(site, blocks, kThreads, g, x, cotangent_blocks);
  return Launch<CastKernel<BFloat>, 0>(site, blocks, kThreads, g, x, cotangent_blocks);
}

}  // namespace knnconv::gpu
