#include "cpu/knn_tiles.h"

#include <algorithm>
#include <vector>

#include "cpu/cells.h"
#include "cpu/dot_block.h"
#include "cpu/hub_sums.h"
#include "cpu/in_place_block.h"
#include "cpu/knn_blocks.h"
#include "cpu/tile_block.h"

namespace knnconv::cpu {
namespace {

int64_t Nodes(const KnnPass& pass) { return pass.out.dimensions()[pass.out.dimensions().size() - 2]; }

// Rows shorter than a cache line, of sources that fit into the cache: to ask for them ahead would only take time.
bool AreNear(const KnnBlock& block) { return block.row_bytes < 64 && block.batch_bytes < 1 << 17; }

// Adds the taps of a block whose slot is the column: all rows have their k-th tap in slot k. Marks nodes that have any.
template <typename Sums>
void AddColumns(const KnnBlock& block, const int32_t* indices, int64_t row_columns, int64_t columns, Sums& sums,
                char* used) {
  // Copies: writes to `used` could change the block for all that the compiler knows.
  const int64_t batches = block.batches.size(), nodes = block.nodes.size(), sources = block.sources;
  const int64_t row_bytes = block.row_bytes, batch_bytes = block.batch_bytes;
  const char* const first_batch = block.Batch(0);
  const bool prefetched = !AreNear(block);
  const void* pointers[kBlockRows];
  for (int64_t k = 0; k < columns; ++k) {
    bool any = false;
    for (int64_t n = 0; n < nodes; ++n) {
      const int32_t index = indices[n * row_columns + k];
      if (prefetched && k + 1 < columns && !IsHole(indices[n * row_columns + k + 1], sources)) {
        const char* next = first_batch + indices[n * row_columns + k + 1] * row_bytes;
        for (int64_t b = 0; b < batches; ++b, next += batch_bytes) PrefetchRow(next, row_bytes);
      }
      const bool hole = IsHole(index, sources);
      used[n] |= !hole;
      any |= !hole;
      if (batches == 1) {
        pointers[n] = hole ? nullptr : first_batch + index * row_bytes;
        continue;
      }
      for (int64_t b = 0; b < batches; ++b) {
        pointers[n * batches + b] = hole ? nullptr : first_batch + b * batch_bytes + index * row_bytes;
      }
    }
    if (any) sums.Add(k, pointers);
  }
  sums.Multiply();
}

void RunColumns(ffi::ThreadPool& pool, const KnnPass& pass, const ForwardTaps& taps) {
  const int64_t columns = std::min(taps.columns, pass.panels.slots()), nodes = Nodes(pass);
  const bool dot = pass.panels.dot();
  // One batch entry where there are nodes enough: neighbouring nodes share sources, batch entries do not.
  ForEachKnnBlock(pool, pass, dot ? kDotBlockRows : kBlockRows, 1, [&](const KnnBlock& block) {
    const int32_t* indices = GroupIndices(taps.indices, pass.groups, block.group, nodes * taps.columns) +
                             block.nodes.begin * taps.columns;
    char used[kBlockRows];
    std::fill(used, used + block.nodes.size(), !pass.zero_empty_rows);
    if (dot) {
      DotBlock dots(ActiveIsa(), pass.read, pass.panels, block.packed);
      dots.Select(0, block.rows());
      AddColumns(block, indices, taps.columns, columns, dots, used);
      block.Store(dots, used);
    } else if (InPlaceBlock::Suits(pass.read, pass.panels, 1)) {
      InPlaceBlock rows(ActiveIsa(), pass.panels, block.packed, block.panels.begin, block.panels.end, 1);
      rows.Begin(block.rows());
      AddColumns(block, indices, taps.columns, columns, rows, used);
      block.Store(rows, used);
    } else {
      TileBlock tile(ActiveIsa(), pass.read, pass.panels, block.packed, block.panels.begin, block.panels.end,
                     kBlockRows);
      tile.Begin(block.rows());
      tile.Select(block.rows());
      AddColumns(block, indices, taps.columns, columns, tile, used);
      block.Store(tile, used);
    }
  });
}

// A cell list is cut when it has this many cells, so that it stays small whatever the table.
constexpr int64_t kMaxCells = 16384;

// Calls run(part, cells, used) for parts of a block, each with the cells of its nodes.
// collect(block, node, local, cells) adds the cells of one node, which is number `local` of its part.
template <typename Collect, typename Run>
void ForEachCellList(const KnnPass& pass, const KnnBlock& block, const Collect& collect, const Run& run) {
  static thread_local CellList cells;
  for (int64_t first = block.nodes.begin; first < block.nodes.end;) {
    KnnBlock part = block;
    part.nodes = {first, first};
    cells.Reset(pass.panels.slots());
    char used[kMaxKnnRows];
    while (part.nodes.end < block.nodes.end && (part.nodes.size() == 0 || cells.size() < kMaxCells)) {
      const int64_t before = cells.size(), local = part.nodes.size();
      collect(part, part.nodes.end, static_cast<int32_t>(local), cells);
      used[local] = !pass.zero_empty_rows || cells.size() > before;
      ++part.nodes.end;
    }
    run(part, cells, used);
    first = part.nodes.end;
  }
}

// Adds the taps of a cell to a block of one node, batch entries as rows. A long cell is summed first.
void AddDots(const Isa& isa, const KnnPass& pass, const KnnBlock& block, const Cell& cell, DotBlock& dots) {
  const int64_t depth = pass.panels.depth(), width = ByteWidth(pass.read);
  if (cell.count > kSumBlock) {
    std::vector<float> sum(depth);
    for (int64_t b = 0; b < block.batches.size(); ++b) {
      const float* total = cell.hub ? cell.hub + (block.batches.begin + b) * depth : sum.data();
      for (int64_t d = 0; d < depth && cell.hub == nullptr; d += kTileDepth) {
        SumTaps(isa, pass.read, block.Batch(b) + d * width, depth, cell.sources, cell.count,
                std::min<int64_t>(kTileDepth, depth - d), sum.data() + d);
      }
      dots.AddFloats(cell.slot, b, total);
    }
    return;
  }
  for (int64_t t = 0; t < cell.count; ++t) {
    const void** pointers = dots.NextTap(cell.slot);
    const char* row = block.Batch(0) + cell.sources[t] * block.row_bytes;
    for (int64_t b = 0; b < block.batches.size(); ++b, row += block.batch_bytes) {
      pointers[b] = row;
    }
  }
}

// Tables whose rows differ in their slots.
template <typename Collect>
void RunCells(ffi::ThreadPool& pool, const KnnPass& pass, int64_t taps, const Collect& collect) {
  const Isa& isa = ActiveIsa();
  const int64_t depth = pass.panels.depth(), slots = pass.panels.slots();
  // Visiting a row once a slot costs about 12 k-steps of loads and stores of its sums; with few channels it is cheaper
  // to multiply zeros where a row lacks the slot. Of taps thrown at random, about 3 in 5 hit a cell of their own.
  const bool whole = depth * Nodes(pass) * slots * 5 < (depth + 12) * taps * 3;
  // Sums of up to 256 rows: enough rows of a slot to fill tiles, in the cache beside the tile.
  const int64_t columns = std::min<int64_t>(pass.panels.count(), 16) * kPanelColumns;
  const int64_t max_rows =
      whole ? kBlockRows : std::clamp<int64_t>((int64_t{1} << 17) / std::max<int64_t>(1, columns), 64, kMaxKnnRows);

  ForEachKnnBlock(pool, pass, max_rows, 8, [&](const KnnBlock& block) {
    TileBlock tile(isa, pass.read, pass.panels, block.packed, block.panels.begin, block.panels.end, block.rows());
    ForEachCellList(pass, block, collect, [&](const KnnBlock& part, CellList& cells, const char* used) {
      cells.Sort();
      tile.Begin(part.rows());
      cells.Multiply(isa, pass.read, part, depth, whole, part.rows(), tile);
      part.Store(tile, used);
    });
  });
}

// The same with few columns: node by node, batch entries as rows that share their taps.
template <typename Collect>
void RunDotCells(ffi::ThreadPool& pool, const KnnPass& pass, const Collect& collect) {
  const Isa& isa = ActiveIsa();
  ForEachKnnBlock(pool, pass, kDotBlockRows, 8, [&](const KnnBlock& block) {
    DotBlock dots(isa, pass.read, pass.panels, block.packed);
    ForEachCellList(pass, block, collect, [&](const KnnBlock& part, CellList& cells, const char* used) {
      const int64_t batches = part.batches.size();
      auto cell = cells.cells().begin();
      for (int64_t node = 0; node < part.nodes.size(); ++node) {
        dots.Select(node * batches, batches);
        for (; cell != cells.cells().end() && cell->node == node; ++cell) AddDots(isa, pass, part, *cell, dots);
      }
      dots.Multiply();
      part.Store(dots, used);
    });
  });
}

}  // namespace

void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const ForwardTaps& taps) {
  if (taps.slots == nullptr) return RunColumns(pool, pass, taps);
  const int64_t slots = pass.panels.slots(), matrix = Nodes(pass) * taps.columns;
  auto collect = [&](const KnnBlock& block, int64_t node, int32_t local, CellList& cells) {
    const int32_t* indices = GroupIndices(taps.indices, pass.groups, block.group, matrix) + node * taps.columns;
    const int32_t* row_slots = GroupIndices(*taps.slots, pass.groups, block.group, matrix) + node * taps.columns;
    auto hole = [&](int64_t k) { return IsHole(indices[k], block.sources) || IsHole(row_slots[k], slots); };
    for (int64_t k = 0, next; k < taps.columns; k = next) {
      next = k + 1;
      if (hole(k)) continue;
      while (next < taps.columns && row_slots[next] == row_slots[k] && !hole(next)) ++next;
      cells.Add({indices + k, next - k, nullptr, local, row_slots[k]});
    }
  };
  if (pass.panels.dot()) return RunDotCells(pool, pass, collect);
  RunCells(pool, pass, matrix, collect);
}

void RunKnnPass(ffi::ThreadPool& pool, const KnnPass& pass, const SourceTaps& taps) {
  if (pass.out.element_count() == 0) return;
  const HubSums hubs(pool, ActiveIsa(), pass, taps);
  auto collect = [&](const KnnBlock& block, int64_t node, int32_t local, CellList& cells) {
    const int32_t* offsets = GroupIndices(taps.offsets, pass.groups, block.group, 2 * (Nodes(pass) + 1));
    const int32_t* rows = GroupIndices(taps.rows, pass.groups, block.group, taps.count);
    const int32_t* slots = GroupIndices(taps.slots, pass.groups, block.group, taps.count);
    const int64_t end = SourceOffset(offsets, node + 1);
    for (int64_t t = SourceOffset(offsets, node), next; t < end; t = next) {
      next = CellEnd(slots, t, end);
      const float* hub = next - t > kSumSpan ? hubs.Find(block.group, rows + t) : nullptr;
      cells.Add({rows + t, next - t, hub, local, slots[t]});
    }
  };
  if (pass.panels.dot()) return RunDotCells(pool, pass, collect);
  RunCells(pool, pass, taps.count, collect);
}

}  // namespace knnconv::cpu
