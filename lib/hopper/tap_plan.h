// What a launch adds to a TapGemm for Hopper's kernels: tensor maps, how tiles are numbered, and pixels by class.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/divisor.h"
#include "hopper/device.h"
#include "hopper/tap_choice.h"

namespace knnconv::hopper {

inline constexpr int kSliceDepth = 16;  // of one product

// How a tile's rows reach the result.
enum class Stores : int {
  kRows,   // one by one, from anywhere to anywhere
  kFlat,   // as boxes {columns, kStoredRows}: rows of the tile follow each other in the result
  kTable,  // as boxes {columns, 1 node, kStoredRows batch entries}
};
inline constexpr int kStoredRows = 16;  // a warp's share of a product

// Whether a warpgroup stores its rows of a tile together: where a tile fills a multiprocessor, so that nothing else
// runs there while one is written.
constexpr bool StoresTogether(Source source, int rows, int columns, int split) {
  return source == Source::kBoxes && rows % kBoxRows == 0 && rows * columns >= 128 * 256 && split == 1;
}

struct TapPlan {
  CUtensorMap weight, out;
  CUtensorMap source[kMaxClasses];  // tables use the first
  gpu::TapGemm gemm;
  PixelClass classes[kMaxClasses];
  TapGroups groups;
  int64_t tiles;                 // 31 bits
  gpu::Divisor by_row_tiles;     // of each class
  gpu::Divisor by_column_tiles;
  gpu::Divisor by_parts;  // of a node's batch: the copies that cover it
  int32_t class_count;  // 1 of tables
  int32_t row_groups;   // whose nodes follow each other in tiles
  int32_t tile_groups;  // that have tiles of their own
  int64_t images;       // of a kWindow `gemm`'s source, of all groups
  int32_t box_rows;  // of a table's copies
  int32_t row_of_blocks;  // blocks of which each has a multiprocessor of its own; they divide the launch's
  gpu::Divisor by_row_of_blocks;
  Stores stores;
  bool sorts;  // whether tiles of nodes with long lists come first
};

// How a kernel cuts a TapGemm. Tiles have kRowCount rows, which kConsumers warpgroups share. A team is those
// and the warp or, for rows, the warpgroups that load for them. With resident weights a block has two teams, each with
// tiles of its own, and all slots' matrices lie in shared memory from start to end: a third less to load for tiles of
// 64 columns, which loads bound.
template <typename Element, bool kIsTransposed, Source kFrom, int kRowCount, int kConsumerCount, int kColumnCount,
          bool kIsResident = false, int kBlocksOfCluster = 1, int kTilesOfCluster = 1>
struct TapShape {
  using T = Element;
  static constexpr int kSplit = kBlocksOfCluster;  // which share one tile at a time, or two (tap_parts.h)
  static constexpr int kTiles = kTilesOfCluster;
  static constexpr bool kTransposed = kIsTransposed, kResident = kIsResident;
  static constexpr Source kSource = kFrom;
  static constexpr int kRows = kRowCount, kConsumers = kConsumerCount, kColumns = kColumnCount;
  static constexpr bool kOnlyPixels = kRows % kBoxRows != 0;
  static constexpr int kBoxes = kRows / kBoxRows;  // of tables
  static constexpr int kBlocks = kRows / 64 / kConsumers;  // of 64 rows, in a consumer's sums

  // Of one product. 512 threads have 128 registers each until they shift them, too few for a product of 256 columns.
  static constexpr int kProductColumns = kConsumers > 2 ? 128 : kColumns;

  static constexpr int kTeams = kResident ? 2 : 1;
  static constexpr int kConsumerThreads = 128 * kConsumers;  // of a team
  // Of rows, whether a warpgroup of its own lays out layers: 512 threads have registers for products of 128 columns.
  static constexpr bool kListsApart = kSource == Source::kRows && kColumns <= 128;
  static constexpr int kLastThreads = kListsApart ? 256 : 128;  // of the last warpgroups, which load
  static constexpr int kProducerThreads = kSource == Source::kBoxes ? 32 : kLastThreads;  // of a team
  static constexpr int kThreads = kTeams * kConsumerThreads + kLastThreads;
  // Of a thread: the last warpgroups leave most of their share to the consumers. More than the block was given, 168
  // with 384 threads, 128 with 512 or two blocks of 256, would wait for ever.
  static constexpr int kProducerRegisters = kOnlyPixels                ? 32
                                            : kSource != Source::kRows ? (kThreads == 256 ? 64 : 72)
                                            : kListsApart              ? 72
                                                                       : 104;
  static constexpr int kConsumerRegisters = kOnlyPixels                ? 160
                                            : kSource != Source::kRows ? (kThreads == 256 ? 192 : 216)
                                            : kListsApart              ? 184
                                                                       : 200;
  static constexpr int kGivenRegisters = kThreads == 384 ? 168 : 128;
  static_assert(kConsumerRegisters * (kThreads - kLastThreads) + kProducerRegisters * kLastThreads <=
                kGivenRegisters * kThreads);
  static constexpr int kBlocksOfMultiprocessor = kTeams * kConsumers == 1 ? 2 : 1;

  // Shared memory: resident weights, then for each team stages of A and B, kResults times 16 lines of results for each
  // consuming warp, barriers and notes, and what producers of rows share; last the order of nodes.
  static constexpr int kAlignment = 1024;
  static constexpr int kSlotBytes = kColumns * kStepDepth * 2;
  static constexpr int kWeightBytes = kResident ? kResidentSlots * kSlotBytes : 0;
  static constexpr int kBytesA = kRows * kStepDepth * 2, kBytesB = kResident ? 0 : kSlotBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  // Two where nothing else runs on the multiprocessor while a tile is written.
  static constexpr bool kIsLargest = kSource == Source::kBoxes && kRows * kColumns >= 128 * 256;
  static constexpr int kResults = kIsLargest ? 2 : 1, kLineBytes = kConsumers * 4 * kResults * kStoredRows * 128;
  // Whether the lines of results lie in a stage of the ring, behind a tile's last step: with room for them besides,
  // there would be a stage less.
  static constexpr bool kLendsStage = kOnlyPixels;
  static constexpr int kResultBytes = kLendsStage ? 0 : kLineBytes;
  static_assert(kLineBytes <= kStageBytes);
  // Then a store takes a warpgroup's lines from one of these places. The last one is the rows of A that it has read in
  // the tile's last step, whose stage goes back to the producer when the next tile is under way.
  static constexpr bool kStoresTogether = StoresTogether(kSource, kRows, kColumns, kSplit);
  static constexpr int kPlaces = kResults / kBlocks + 1, kPlaceBytes = kRows / kConsumers * 128;
  static_assert(!kStoresTogether || kResults % kBlocks == 0);
  static constexpr int kTailBytes = 512, kRowBytes = kSource == Source::kRows ? 25200 : 0;
  static constexpr int kTeamAlignment = kTeams > 1 ? kAlignment : 16;
  static constexpr int kEndBytes =
      (kResultBytes + kTailBytes + kRowBytes + kTeamAlignment - 1) / kTeamAlignment * kTeamAlignment;
  static constexpr int kLimit = kMultiprocessorBytes / kBlocksOfMultiprocessor - kBytesBesideBlock;
  // Lists that are sorted at most; with the largest tiles, what room there is.
  static constexpr int kSortedNodes = kSource == Source::kRows || kOnlyPixels ? 0 : kIsLargest ? 768 : 2048;
  static constexpr int kOrderBytes = kSortedNodes * 2;
  static constexpr int kRoom = ((kLimit - kAlignment - kWeightBytes - kOrderBytes) / kTeams - kEndBytes) / kStageBytes;
  static constexpr int kStages = kRoom < 8 ? kRoom : 8;
  static constexpr int kTeamBytes = kStages * kStageBytes + kEndBytes;
  static constexpr int kSharedBytes = kAlignment + kWeightBytes + kTeams * kTeamBytes + kOrderBytes;
};

}  // namespace knnconv::hopper
