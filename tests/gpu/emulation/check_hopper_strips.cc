// Holds the positions of strips to what they promise: a tap reads the pixel that it would read of x itself, or zeros.
#include "check.h"
#include "hopper/dweight_strips.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;
using namespace knnconv::hopper;

namespace {

// A pixel of a line of x or, below 0, none.
struct Pixel {
  int line, w;
};

Pixel PixelAt(const DenseTaps& taps, int position) {
  const int pitch = StripPitch(taps), w = position % pitch - taps.padding[1];
  return {position / pitch, w < taps.in_size[1] ? w : -1};
}

void CheckStrips(const DenseTaps& taps) {
  constexpr int kLines = 3;
  int wrong = StripPitch(taps) < taps.out_size[1];
  for (int line = 0; line < kLines; ++line) {
    for (int w = 0; w < taps.out_size[1]; ++w) {
      for (int tap = 0; tap < kStripTaps; ++tap) {
        const int offset = tap * taps.dilation[1], expected = w + offset - taps.padding[1];
        const Pixel found = PixelAt(taps, line * StripPitch(taps) + w + offset);
        const bool exists = expected >= 0 && expected < taps.in_size[1];
        wrong += exists ? found.line != line || found.w != expected : found.w >= 0;
      }
    }
  }
  if (wrong == 0) return;
  ++failures;
  std::printf("width %d to %d, padding %d, dilation %d: %d wrong\n", taps.in_size[1], taps.out_size[1],
              taps.padding[1], taps.dilation[1], wrong);
}

// SAME windows share one column of padding between lines; VALID ones need none.
void CheckPitch(int width, int padding, int expected) {
  DenseTaps taps = {};
  taps.in_size[1] = width, taps.padding[1] = padding, taps.dilation[1] = taps.stride[1] = 1;
  taps.out_size[1] = width + 2 * padding - 2;
  if (StripPitch(taps) == expected) return;
  ++failures;
  std::printf("width %d, padding %d: pitch %d\n", width, padding, StripPitch(taps));
}

}  // namespace

int main() {
  for (int round = 0; round < 5000; ++round) {
    DenseTaps taps = {};
    taps.kernel_width = kStripTaps;
    taps.stride[1] = 1;
    taps.in_size[1] = Pick(1, 20);
    taps.dilation[1] = Pick(1, 4);
    taps.padding[1] = Pick(-5, 9);
    taps.out_size[1] = taps.in_size[1] + taps.padding[1] + Pick(-5, 9) - (kStripTaps - 1) * taps.dilation[1];
    if (taps.out_size[1] > 0) CheckStrips(taps);
  }
  CheckPitch(56, 1, 57);
  CheckPitch(56, 0, 56);
  return Result();
}
