// g16 = round(clip(g)), x16 = round(x): both operands of a backward pass cast in one launch.
//
// A cotangent beyond the compute dtype's range becomes its largest finite value, so that one overflow does not turn a
// whole gradient into infinities; inputs keep theirs, as the forward pass saw them. Bound by memory.
#include <algorithm>

#include "cpu/handlers.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"

namespace knnconv::cpu {
namespace {

constexpr int64_t kTaskElements = 1 << 16;
constexpr int64_t kClipElements = 1 << 10;  // clipped and rounded while in L1

// Bits of the largest finite value, as fp32.
constexpr uint32_t kLargestF16 = 0x477fe000;
constexpr uint32_t kLargestBF16 = 0x7f7f0000;

// Comparisons on the bits: the same with and without a processor's flush of subnormals to zero, and NaN passes.
void Clip(const float* src, int64_t n, uint32_t largest, uint32_t* dst) {
  const uint32_t* bits = reinterpret_cast<const uint32_t*>(src);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits[i] & 0x7fffffff, clipped = (bits[i] & 0x80000000) | largest;
    dst[i] = magnitude > largest && magnitude <= 0x7f800000 ? clipped : bits[i];
  }
}

ffi::Error RunCast(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> g, ffi::Buffer<ffi::F32> x,
                   ffi::Result<ffi::AnyBuffer> g16, ffi::Result<ffi::AnyBuffer> x16) {
  const ffi::DataType type = g16->element_type();
  KNNCONV_CHECK(type == ffi::DataType::F16 || type == ffi::DataType::BF16);
  KNNCONV_CHECK(x16->element_type() == type);
  KNNCONV_CHECK(int64_t(g.element_count()) == int64_t(g16->element_count()));
  KNNCONV_CHECK(int64_t(x.element_count()) == int64_t(x16->element_count()));
  const auto store = ActiveIsa().store[int(ToDtype(type))];
  const uint32_t largest = type == ffi::DataType::F16 ? kLargestF16 : kLargestBF16;

  const int64_t g_size = g.element_count(), x_size = x.element_count();
  const int64_t g_tasks = (g_size + kTaskElements - 1) / kTaskElements;
  const int64_t x_tasks = (x_size + kTaskElements - 1) / kTaskElements;
  const float* g_data = g.typed_data();
  const float* x_data = x.typed_data();
  uint16_t* g_out = static_cast<uint16_t*>(g16->untyped_data());
  uint16_t* x_out = static_cast<uint16_t*>(x16->untyped_data());
  ParallelFor(pool, g_tasks + x_tasks, [=](int64_t task) {
    if (task >= g_tasks) {
      const int64_t begin = (task - g_tasks) * kTaskElements;
      store(x_data + begin, std::min(kTaskElements, x_size - begin), x_out + begin);
      return;
    }
    const int64_t end = std::min((task + 1) * kTaskElements, g_size);
    for (int64_t begin = task * kTaskElements; begin < end; begin += kClipElements) {
      const int64_t n = std::min(kClipElements, end - begin);
      alignas(64) uint32_t clipped[kClipElements];
      Clip(g_data + begin, n, largest, clipped);
      store(reinterpret_cast<const float*>(clipped), n, g_out + begin);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CastOperands, RunCast,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());

}  // namespace knnconv::cpu
