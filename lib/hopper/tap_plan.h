// What a launch adds to a TapGemm for Hopper's kernels: tensor maps, how tiles are numbered, and pixels by class.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "hopper/tap_gemm.h"

namespace knnconv::hopper {

inline constexpr int kBoxRows = 128;   // of the source, in one copy
inline constexpr int kStepDepth = 64;  // of a step of the main loop: one line of 128 bytes of each row
inline constexpr int kSliceDepth = 16;  // of one product
inline constexpr int kMaxClasses = 9;  // of pixels: dinput with strides up to 3

// Taps of a class of pixels along one dimension: tap i has slot `slot + i * slot_step` of the kernel's line and reads
// `offset + i * offset_step` pixels beyond the corner of the class, where offsets are at least 0.
struct PixelLine {
  int32_t slot, slot_step, count, offset, offset_step;
};

// Pixels of the result with a common list of taps, as in gpu::WindowTaps; [0] is vertical.
struct PixelClass {
  int32_t residue[2], size[2];
  int32_t corner[2];  // the source pixel that offset 0 of the class's first pixel reads
  PixelLine line[2];
};

struct TapPlan {
  CUtensorMap weight;
  CUtensorMap source[kMaxClasses];  // tables use the first
  gpu::TapGemm gemm;
  PixelClass classes[kMaxClasses];
  int64_t tiles;
  int64_t row_tiles;    // of each class
  int32_t column_tiles;
  int32_t parts;        // of a node's batch: the copies that cover it
};

// How a kernel cuts a TapGemm. Tiles have kBoxes * kBoxRows rows, which kConsumers warpgroups share.
template <typename Element, bool kIsTransposed, Source kFrom, int kBoxCount, int kConsumerCount, int kColumnCount>
struct TapShape {
  using T = Element;
  static constexpr bool kTransposed = kIsTransposed;
  static constexpr Source kSource = kFrom;
  static constexpr int kBoxes = kBoxCount, kConsumers = kConsumerCount, kColumns = kColumnCount;
  static constexpr int kRows = kBoxes * kBoxRows;
  static constexpr int kBlocks = kRows / 64 / kConsumers;  // of 64 rows, in a consumer's sums

  static constexpr int kProducerThreads = kSource == Source::kBoxes ? 32 : 128;
  static constexpr int kThreads = 128 * kConsumers + kProducerThreads;
  static constexpr int kBlocksOfMultiprocessor = kConsumers == 1 ? 2 : 1;

  // Shared memory: stages of A and B, then 16 lines of results for each consuming warp, then barriers and notes, then
  // what producers of rows share.
  static constexpr int kBytesA = kRows * kStepDepth * 2, kBytesB = kColumns * kStepDepth * 2;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kResultPitch = 128 + 16;  // lanes that write 4 bytes of 8 lines meet 32 banks
  static constexpr int kResultBytes = kConsumers * 4 * 16 * kResultPitch;
  static constexpr int kTailBytes = 512, kRowBytes = kSource == Source::kRows ? 4096 : 0, kAlignment = 1024;
  static constexpr int kLimit = (228 << 10) / kBlocksOfMultiprocessor - 1024;  // a block's own 1024 bytes count too
  static constexpr int kRoom = (kLimit - kResultBytes - kTailBytes - kRowBytes - kAlignment) / kStageBytes;
  static constexpr int kStages = kRoom < 8 ? kRoom : 8;
  static constexpr int kSharedBytes = kAlignment + kStages * kStageBytes + kResultBytes + kTailBytes + kRowBytes;
};

}  // namespace knnconv::hopper
