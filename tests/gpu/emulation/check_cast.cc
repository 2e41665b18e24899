// Runs the cast's kernel and compares with rounding in double, one value at a time.
#include <cmath>
#include <cstring>

#include "check.h"
#include "gpu/cast_operands.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

template <typename T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int kMantissa = 10, kLeastExponent = -14;
  static constexpr double kLargest = 65504;
};
template <>
struct Format<BFloat> {
  static constexpr int kMantissa = 7, kLeastExponent = -126;
  static constexpr double kLargest = 0x1.fep127;
};

// The nearest number of the format, ties to even; infinity where that lies beyond the largest.
template <typename T>
double Round(double value) {
  using F = Format<T>;
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), F::kLeastExponent);
  const double step = std::ldexp(1.0, exponent - F::kMantissa), rounded = std::nearbyint(value / step) * step;
  return std::abs(rounded) > F::kLargest ? std::copysign(INFINITY, value) : rounded;
}

// What the bits of a result stand for, without the code under test.
template <typename T>
double Decode(T value) {
  using F = Format<T>;
  uint16_t all;
  std::memcpy(&all, &value, sizeof(all));
  const int exponents = 1 << (15 - F::kMantissa), bits = all & 0x7fff;
  const int exponent = bits >> F::kMantissa, mantissa = bits & ((1 << F::kMantissa) - 1);
  const double sign = all >> 15 ? -1 : 1;
  if (exponent == exponents - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  const double whole = exponent == 0 ? mantissa : mantissa + (1 << F::kMantissa);
  return sign * std::ldexp(whole, std::max(exponent, 1) - 1 + F::kLeastExponent - F::kMantissa);
}

bool Same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

float Special(size_t i) {
  constexpr float kSpecial[] = {NAN,     INFINITY, -INFINITY, 70000,     -70000,   65504,        65519.996f, 65520,
                                -65520,  0,        -0.0f,     0.1f,      0x1p-24f, 0x1.8p-25f,   0x1p-25f,   0x1p-14f,
                                0x1p-126f, 0x1p-140f, 3.4e38f, -3.4e38f, 2049,     2051,         1.00390625f, 1.01171875f};
  constexpr size_t kCount = sizeof(kSpecial) / sizeof(float);
  if (i % 3 != 0) return kSpecial[i / 3 * 7 % kCount];
  const uint32_t bits = random_bits();
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
void CheckCast(size_t cotangents, size_t inputs, size_t shift) {
  Array<float> g(cotangents + shift), x(inputs + shift);
  for (size_t i = 0; i < g.size(); ++i) g[i] = Special(i);
  for (size_t i = 0; i < x.size(); ++i) x[i] = Special(i + 1);
  const T unwritten = Narrow<T>(0.75f);
  Array<T> g16(g.size(), unwritten), x16(x.size(), unwritten);
  const std::string name = "cast of " + std::to_string(cotangents) + " and " + std::to_string(inputs);
  for (const Setting& setting : kSettings) {
    Use(setting);
    const auto side = [&](Array<float>& from, Array<T>& to) {
      return CastOperand{from.data() + shift, to.data() + shift, static_cast<int64_t>(from.size() - shift)};
    };
    RequireOk(name, RunCast({nullptr, setting.device, false}, ElementOf<T>::value, side(g, g16), side(x, x16)));
    size_t wrong = 0;
    for (size_t i = shift; i < g.size(); ++i) {
      const double largest = Format<T>::kLargest, value = g[i];
      const double clipped = value > largest ? largest : value < -largest ? -largest : value;
      wrong += !Same(Decode(g16[i]), Round<T>(clipped));
    }
    for (size_t i = shift; i < x.size(); ++i) wrong += !Same(Decode(x16[i]), Round<T>(x[i]));
    if (wrong == 0) continue;
    ++failures;
    std::printf("%s: %zu wrong\n", name.c_str(), wrong);
  }
}

}  // namespace

int main() {
  for (size_t shift : {0, 1}) {
    for (size_t cotangents : {0, 1, 7, 8, 9, 2047, 2048, 2049, 4100}) {
      for (size_t inputs : {0, 3, 2048, 2050}) {
        CheckCast<Half>(cotangents, inputs, shift);
        CheckCast<BFloat>(cotangents, inputs, shift);
      }
    }
  }
  return Result();
}
