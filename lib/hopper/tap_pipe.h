// The pipeline between the warp that loads tiles and the warpgroups that multiply them: a ring of stages in shared memory.
//
// A stage holds one step of the main loop, A [rows, 64] and B [64, columns], and a note. Notes are all that tells consumers
// where a tile ends: they need not know where tiles come from. What a step lacks in depth is zeros in A and B.
#pragma once

#include <cstdint>

#include "hopper/ptx.h"
#include "hopper/tap_plan.h"

namespace knnconv::hopper {

// What a consumer has to know of a step.
struct StepNote {
  bool last;       // of its tile
  bool unwritten;  // with the last: somebody else writes the tile
  uint32_t dead;   // with the last: a bit for each box whose rows become zeros, without the bias

  KNNCONV_DEVICE static StepNote Unpack(uint32_t bits) {
    return {(bits & 1) != 0, (bits >> 1 & 1) != 0, bits >> 2};
  }
  KNNCONV_DEVICE uint32_t Pack() const { return (last ? 1u : 0) | (unwritten ? 2u : 0) | dead << 2; }
};

// A place in the ring, and the parity of the phase that fills it.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  KNNCONV_DEVICE void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <typename Shape>
class Pipe {
 public:
  using Place = RingPlace<Shape::kStages>;

  KNNCONV_DEVICE explicit Pipe(char* shared) {
    const uint32_t address = SharedAddress(shared);
    base_ = shared + ((address + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment - address);
  }

  // By one thread; the block has to synchronise afterwards.
  KNNCONV_DEVICE void Init() const {
    for (int i = 0; i < Shape::kStages; ++i) {
      Full(i).Init(1);
      Empty(i).Init(4 * Shape::kConsumers);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
  }

  KNNCONV_DEVICE char* A(int stage) const { return base_ + stage * Shape::kStageBytes; }
  KNNCONV_DEVICE char* B(int stage) const { return A(stage) + Shape::kBytesA; }
  KNNCONV_DEVICE Barrier& Full(int stage) const { return barriers()[stage]; }
  KNNCONV_DEVICE Barrier& Empty(int stage) const { return barriers()[Shape::kStages + stage]; }
  KNNCONV_DEVICE uint32_t& Note(int stage) const {
    return reinterpret_cast<uint32_t*>(barriers() + 2 * Shape::kStages)[stage];
  }
  // 16 lines of kResultPitch bytes of a consuming warp.
  KNNCONV_DEVICE char* Results(int warp) const {
    return base_ + Shape::kStages * Shape::kStageBytes + warp * 16 * Shape::kResultPitch;
  }

 private:
  KNNCONV_DEVICE Barrier* barriers() const {
    return reinterpret_cast<Barrier*>(base_ + Shape::kStages * Shape::kStageBytes + Shape::kResultBytes);
  }
  static_assert(Shape::kStages >= 2 && Shape::kStages * 20 <= Shape::kTailBytes);

  char* base_;
};

}  // namespace knnconv::hopper
