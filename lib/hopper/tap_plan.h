// What a launch adds to a TapGemm for Hopper's kernels: tensor maps, how tiles are numbered, and pixels by class.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "hopper/tap_gemm.h"

namespace knnconv::hopper {

inline constexpr int kBoxRows = 128;   // of the source, in one copy
inline constexpr int kStepDepth = 64;  // of a step of the main loop: one line of 128 bytes of each row
inline constexpr int kSliceDepth = 16;  // of one product
inline constexpr int kResidentSlots = 9;  // at most, of 64 x 64
inline constexpr int kSortedNodes = 2048;  // at most
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
  bool sorts;           // whether tiles of nodes with long lists come first
};

// How a kernel cuts a TapGemm. Tiles have kBoxes * kBoxRows rows, which kConsumers warpgroups share. A team is those and
// the threads that load for them. With resident weights a block has two teams, each with tiles of its own, and all slots'
// matrices lie in shared memory from start to end: a third less to load for tiles of 64 columns, which loads bound.
template <typename Element, bool kIsTransposed, Source kFrom, int kBoxCount, int kConsumerCount, int kColumnCount,
          bool kIsResident = false>
struct TapShape {
  using T = Element;
  static constexpr bool kTransposed = kIsTransposed, kResident = kIsResident;
  static constexpr Source kSource = kFrom;
  static constexpr int kBoxes = kBoxCount, kConsumers = kConsumerCount, kColumns = kColumnCount;
  static constexpr int kRows = kBoxes * kBoxRows;
  static constexpr int kBlocks = kRows / 64 / kConsumers;  // of 64 rows, in a consumer's sums

  static constexpr int kTeams = kResident ? 2 : 1;
  static constexpr int kConsumerThreads = 128 * kConsumers;  // of a team
  static constexpr int kProducerThreads = kSource == Source::kBoxes ? 32 : 128;
  static constexpr int kThreads = kTeams * (kConsumerThreads + kProducerThreads);
  static constexpr int kBlocksOfMultiprocessor = kTeams * kConsumers == 1 ? 2 : 1;

  // Shared memory: resident weights, then for each team stages of A and B, 16 lines of results for each consuming warp,
  // barriers and notes, and what producers of rows share; last the order of nodes.
  static constexpr int kAlignment = 1024;
  static constexpr int kSlotBytes = kColumns * kStepDepth * 2;
  static constexpr int kWeightBytes = kResident ? kResidentSlots * kSlotBytes : 0;
  static constexpr int kBytesA = kRows * kStepDepth * 2, kBytesB = kResident ? 0 : kSlotBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kResultPitch = 128 + 16;  // lanes that write 4 bytes of 8 lines meet 32 banks
  static constexpr int kResultBytes = kConsumers * 4 * 16 * kResultPitch;
  static constexpr int kTailBytes = 512, kRowBytes = kSource == Source::kRows ? 4096 : 0;
  static constexpr int kEndBytes = (kResultBytes + kTailBytes + kRowBytes + kAlignment - 1) / kAlignment * kAlignment;
  static constexpr int kLimit = (228 << 10) / kBlocksOfMultiprocessor - 1024;  // a block's own 1024 bytes count too
  static constexpr int kOrderBytes = kSource == Source::kBoxes ? kSortedNodes * 2 : 0;
  static constexpr int kRoom = ((kLimit - kAlignment - kWeightBytes - kOrderBytes) / kTeams - kEndBytes) / kStageBytes;
  static constexpr int kStages = kRoom < 8 ? kRoom : 8;
  static constexpr int kTeamBytes = kStages * kStageBytes + kEndBytes;
  static constexpr int kSharedBytes = kAlignment + kWeightBytes + kTeams * kTeamBytes + kOrderBytes;
};

}  // namespace knnconv::hopper
