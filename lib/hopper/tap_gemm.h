// Forward and dinput on Hopper (compute capability 9.0), dense and KNN, by TMA and wgmma.
#pragma once

#include "gpu/tap_gemm.h"

namespace knnconv::hopper {

// How the rows of a tile's A reach shared memory.
enum class Source {
  kBoxes,  // by the copy engine, kBoxRows at a time: the batch of one node, or pixels that follow each other
  kRows,   // one by one, each row a (node, batch entry) of its own, with a list of taps of its own
  kCells,  // likewise, but all taps of a row and slot are added first; where HasCells
};

// A thread block's tile. kBoxes: 128 or 256 rows and 64 or 128 columns, or 128 rows and 192 or 256 columns. kRows
// and kCells: 128 rows and 64, 128 or 256 columns; for tables alone. resident: all weights stay in shared memory; kBoxes, 128 rows and
// 64 columns, where CanStay.
struct TileForm {
  Source source;
  int rows, columns;
  bool resident = false;
};

// Whether all weights fit into shared memory.
bool CanStay(const gpu::TapGemm& gemm);

// Whether Hopper's kernels can run `gemm` on this device.
gpu::Status Takes(int ordinal, const gpu::TapGemm& gemm, bool* takes);

// Whether they are expected to be the faster ones, by shape. Only where Takes.
bool Pays(const gpu::TapGemm& gemm);

// The form of the tiles that `gemm` is cut into, by its shape and the card's size.
TileForm ChooseForm(const gpu::TapGemm& gemm, int multiprocessors);

// Runs a `gemm` that Takes.
gpu::Status RunTapGemm(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const TileForm& form);

}  // namespace knnconv::hopper
