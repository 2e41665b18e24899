// A place in a ring whose length a launch chooses; RingPlace (tap_pipe.h) is for lengths that are known before.
#pragma once

#include <cstdint>

#include "hopper/ptx.h"

namespace knnconv::hopper {

// Which of `held` places is next, and the parity of the phase that fills it.
struct SamplePlace {
  int place = 0;
  uint32_t parity = 0;

  KNNCONV_DEVICE void Advance(int held) {
    if (++place < held) return;
    place = 0;
    parity ^= 1;
  }
};

}  // namespace knnconv::hopper
