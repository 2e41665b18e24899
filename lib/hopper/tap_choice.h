// When Hopper's kernels of forward and dinput (compute capability 9.0) run, and the tiles that a TapGemm is cut into.
#pragma once

#include "gpu/device.h"
#include "gpu/tap_gemm.h"
#include "hopper/pixel_classes.h"

namespace knnconv::hopper {

inline constexpr int kBoxRows = 128;      // of the source, in one copy
inline constexpr int kStepDepth = 64;     // of a step of the main loop: one line of 128 bytes of each row
inline constexpr int kResidentSlots = 9;  // at most, of 64 x 64

// How the rows of a tile's A reach shared memory.
enum class Source {
  kBoxes,  // by the copy engine, kBoxRows at a time: the batch of one node, or pixels that follow each other
  kRows,   // one by one, each row a (node, batch entry) of its own, with a list of taps of its own
  kExtra,  // likewise, in lists of a source order: all but the first tap of a node and slot are rows of their own
  kSample,  // out of a sample of x in shared memory (sample_kernel.h), where FitsSample; 64 rows and columns
};

// A thread block's tile. kBoxes: 128 or 256 rows and 64 or 128 columns, or 128 rows and 192 or 256 columns, or 96 where
// the weight is transposed and has as many or less; of pixels, 192 rows and 256 columns, too. Others have 128 rows, for
// tables alone: kRows 64, 128 or 256 columns, in forward; kExtra 64 or 128 columns.
// resident: all weights stay in shared memory; kBoxes, 128 rows and 64 columns, where CanStay. split: blocks, of one
// cluster, that share the steps of a tile, or of two: 2 with kBoxes and 128 rows, where CanSplit.
struct TileForm {
  Source source;
  int rows, columns;
  bool resident = false;
  int split = 1;
  int tiles = 1;  // whose steps blocks share at a time
};

// Whether such tiles are of pixels alone: a table's are whole boxes.
inline bool IsOfPixels(const TileForm& tile) { return tile.source == Source::kBoxes && tile.rows % kBoxRows != 0; }

// Groups of a TapGemm: what lies between one of them and the next, 0 where they share it.
struct TapGroups {
  int32_t count = 1;
  int64_t source_rows = 0;  // of all batch entries
  int64_t taps = 0, offsets = 0;  // of the table: entries of each operand, words
  int32_t slots = 0, bias = 0;    // matrices of the weight, columns
};

// False where an operand belongs to some of the group dimensions only, or where numbers are too long.
bool FindGroups(const gpu::TapGemm& gemm, TapGroups* groups);

// The tiles of a TapGemm, and its classes of pixels.
struct TapForm {
  TileForm tile;
  PixelClasses classes;
  TapGroups groups;
};

// Whether all weights fit into shared memory, and all tiles have the same ones.
bool CanStay(const gpu::TapGemm& gemm);

// Whether there are tiles of 96 columns.
bool HasTile96(const gpu::TapGemm& gemm);

// Whether there are kernels for tiles of this form, which blocks share: one tile of a table, of 128 columns in dinput
// and 256 in forward; or two of dinput, of 128, 192 or 256.
bool CanSplit(const gpu::TapGemm& gemm, const TileForm& tile);

// Clusters of two tiles, or one where a device has room for more of them. With tiles of 128 columns, where more blocks
// were no faster, all have one or none has.
int64_t PairClusters(int64_t tiles, int columns, int64_t at_once);

// Copies of kBoxRows that cover a node's batch.
int32_t Parts(const gpu::TapGemm& gemm, const TileForm& tile);

// Groups whose nodes follow each other in tiles: all of them, where rows come one by one and groups differ in nothing
// else, or one. The others' tiles are their own.
int64_t RowGroups(const TapForm& form);
int64_t TileGroups(const TapForm& form);

// The tiles of each class, and of RowGroups.
int64_t RowTiles(const gpu::TapGemm& gemm, const TapForm& form);

// Whether Hopper's kernels are to compute `gemm`: where they can if `forced`, else where they are expected to be the
// faster ones, too; and in which form.
bool ChooseForm(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, TapForm* form);

}  // namespace knnconv::hopper
