#include "cpu/knn_tiles.h"

#include <algorithm>
#include <vector>

#include "cpu/cells.h"
#include "cpu/hub_sums.h"
#include "cpu/knn_blocks.h"

namespace knnconv::cpu {
namespace {

// Tables whose slot is the column: all rows of a tile have their k-th tap in slot k, holes are rows of zeros.
void RunColumns(ffi::ThreadPool& pool, const KnnPass& pass, const ForwardTaps& taps) {
  const int64_t columns = std::min(taps.columns, pass.panels.slots());
  const int64_t nodes = pass.out.dimensions()[pass.out.dimensions().size() - 2];
  ForEachKnnBlock(pool, pass, kBlockRows, 1, [&](const KnnBlock& block) {
    const int32_t* indices = reinterpret_cast<const int32_t*>(
        GroupData(taps.indices, pass.groups, block.group, nodes * taps.columns, 4)) + block.nodes.begin * taps.columns;
    const int64_t batches = block.batches.size();
    TileBlock tile(ActiveIsa(), pass.read, pass.panels, block.packed, block.panels.begin, block.panels.end, kBlockRows);
    tile.Begin(block.rows());
    tile.Select(block.rows());
    const void* pointers[kBlockRows];
    bool used[kBlockRows] = {};
    for (int64_t k = 0; k < columns; ++k) {
      bool any = false;
      for (int64_t n = 0; n < block.nodes.size(); ++n) {
        const int32_t index = indices[n * taps.columns + k];
        const bool hole = IsHole(index, block.sources);
        used[n] |= !hole;
        any |= !hole;
        for (int64_t b = 0; b < batches; ++b) {
          pointers[n * batches + b] = hole ? nullptr : block.Batch(b) + index * block.row_bytes;
        }
      }
      if (any) tile.Add(k, pointers);
    }
    tile.Multiply();
    for (int64_t n = 0; n < block.nodes.size(); ++n) {
      for (int64_t b = 0; b < batches; ++b) {
        block.Store(tile, n * batches + b, n, b, used[n] || !pass.zero_empty_rows);
      }
    }
  });
}

// A cell list is cut when it has this many cells, so that it stays small whatever the table.
constexpr int64_t kMaxCells = 16384;

// Tables whose rows differ in their slots. collect(block, node, local, cells) adds the cells of a node.
template <typename Collect>
void RunCells(ffi::ThreadPool& pool, const KnnPass& pass, int64_t taps, const Collect& collect) {
  const Isa& isa = ActiveIsa();
  const int64_t depth = pass.panels.depth(), slots = pass.panels.slots();
  const int64_t nodes = pass.out.dimensions()[pass.out.dimensions().size() - 2];
  // Visiting a row once a slot costs about 12 k-steps of loads and stores of its sums; with few channels it is cheaper to
  // multiply zeros where a row lacks the slot. Of taps thrown at random, about 5 in 8 hit a cell of their own.
  const bool whole = depth * nodes * slots * 5 < (depth + 12) * taps * 3;
  // Sums of up to 256 rows: enough rows of a slot to fill tiles, in the cache beside the tile.
  const int64_t columns = std::min<int64_t>(pass.panels.count(), 16) * kPanelColumns;
  const int64_t max_rows =
      whole ? kBlockRows : std::clamp<int64_t>((int64_t{1} << 17) / std::max<int64_t>(1, columns), 64, 256);

  ForEachKnnBlock(pool, pass, max_rows, 8, [&](const KnnBlock& all) {
    TileBlock tile(isa, pass.read, pass.panels, all.packed, all.panels.begin, all.panels.end, all.rows());
    CellList cells(slots);
    std::vector<char> used;
    for (int64_t first = all.nodes.begin; first < all.nodes.end;) {
      KnnBlock block = all;
      block.nodes = {first, first};
      cells.Clear();
      used.clear();
      while (block.nodes.end < all.nodes.end && (cells.size() < kMaxCells || used.empty())) {
        const int64_t before = cells.size();
        collect(block, block.nodes.end, static_cast<int32_t>(used.size()), cells);
        used.push_back(cells.size() > before);
        ++block.nodes.end;
      }
      cells.Sort();
      tile.Begin(block.rows());
      cells.Multiply(isa, pass.read, block, depth, whole, block.rows(), tile);
      for (int64_t n = 0; n < block.nodes.size(); ++n) {
        for (int64_t b = 0; b < block.batches.size(); ++b) {
          block.Store(tile, n * block.batches.size() + b, n, b, used[n] || !pass.zero_empty_rows);
        }
      }
      first = block.nodes.end;
    }
  });
}

}  // namespace

void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const ForwardTaps& taps) {
  if (taps.slots == nullptr) return RunColumns(pool, pass, taps);
  const int64_t nodes = pass.out.dimensions()[pass.out.dimensions().size() - 2];
  const int64_t slots = pass.panels.slots(), matrix = nodes * taps.columns;
  RunCells(pool, pass, matrix, [&](const KnnBlock& block, int64_t node, int32_t local, CellList& cells) {
    const int32_t* indices = reinterpret_cast<const int32_t*>(
        GroupData(taps.indices, pass.groups, block.group, matrix, 4)) + node * taps.columns;
    const int32_t* row_slots = reinterpret_cast<const int32_t*>(
        GroupData(*taps.slots, pass.groups, block.group, matrix, 4)) + node * taps.columns;
    auto hole = [&](int64_t k) { return IsHole(indices[k], block.sources) || IsHole(row_slots[k], slots); };
    for (int64_t k = 0; k < taps.columns; ++k) {
      if (hole(k)) continue;
      int64_t end = k + 1;
      while (end < taps.columns && row_slots[end] == row_slots[k] && !hole(end)) ++end;
      cells.Add({indices + k, end - k, nullptr, local, row_slots[k]});
      k = end - 1;
    }
  });
}

void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const SourceTaps& taps) {
  const int64_t nodes = pass.out.dimensions()[pass.out.dimensions().size() - 2];
  if (pass.out.element_count() == 0) return;
  const HubSums hubs(pool, ActiveIsa(), pass, taps);
  RunCells(pool, pass, taps.count, [&](const KnnBlock& block, int64_t node, int32_t local, CellList& cells) {
    const int32_t* offsets =
        reinterpret_cast<const int32_t*>(GroupData(taps.offsets, pass.groups, block.group, 2 * nodes + 2, 4));
    const int32_t* rows = reinterpret_cast<const int32_t*>(GroupData(taps.rows, pass.groups, block.group, taps.count, 4));
    const int32_t* slots =
        reinterpret_cast<const int32_t*>(GroupData(taps.slots, pass.groups, block.group, taps.count, 4));
    const int64_t end = SourceOffset(offsets, node + 1);
    for (int64_t t = SourceOffset(offsets, node), next; t < end; t = next) {
      next = CellEnd(slots, t, end);
      const float* hub = next - t > kSumSpan ? hubs.Find(block.group, rows + t) : nullptr;
      cells.Add({rows + t, next - t, hub, local, slots[t]});
    }
  });
}

}  // namespace knnconv::cpu
