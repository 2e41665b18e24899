// Taps of a block of nodes as cells, for tables whose rows differ in their slots.
//
// A cell is all taps of one (node, slot): their source rows are summed in fp32, then multiplied once. Cells are visited
// slot by slot, so that one weight matrix meets all rows that have it.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/hub_sums.h"
#include "cpu/knn_blocks.h"
#include "cpu/tile_block.h"

namespace knnconv::cpu {

struct Cell {
  const int32_t* sources;
  int64_t count;
  const float* hub;  // the sums [batch, D] of a cell too long to be summed here, or null
  int32_t node;      // in the block
  int32_t slot;
};

class CellList {
 public:
  // Empties the list; cells that follow have slots in [0, slots).
  void Reset(int64_t slots) {
    cells_.clear();
    slots_ = slots;
  }
  int64_t size() const { return static_cast<int64_t>(cells_.size()); }
  void Add(const Cell& cell) { cells_.push_back(cell); }
  // In the order in which they were added.
  const std::vector<Cell>& cells() const { return cells_; }

  // Sorts by slot; cells of a slot keep the order in which they were added.
  void Sort();

  // Adds the products of all cells to a begun tile block, whose row (node, b) is node * batches + b.
  // `whole` gathers every row of the block for each slot, zeros where it has none.
  void Multiply(const Isa& isa, Source read, const KnnBlock& block, int64_t depth, bool whole, int64_t rows,
                TileBlock& tile);

 private:
  class Batcher;

  int64_t slots_ = 0;
  std::vector<Cell> cells_, sorted_;
  std::vector<int64_t> starts_;
};

}  // namespace knnconv::cpu
