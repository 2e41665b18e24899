// Tiles of rows, and the list of taps of each row.
//
// Plan: a TapPlan, or what stands for it in checks: a gemm, its groups, and the number of those whose rows fill tiles.
#pragma once

#include <cstdint>

#include "gpu/tap_layers.h"
#include "hopper/tap_choice.h"

namespace knnconv::hopper {

struct TapTile {
  int64_t row_tile;
  int group;  // 0 if its rows are of several
  int pixel_class;
  int first_column;
};

// What a row of a tile of rows is.
struct RowPlace {
  int64_t group, node, entry;  // of the batch
  bool exists;
};

// Batch entries are fastest, then nodes: neighbours share taps.
template <typename Plan>
KNNCONV_DEVICE RowPlace PlaceOf(const Plan& plan, const TapTile& tile, int64_t row) {
  const gpu::Split entry = gpu::Divide(row, plan.gemm.batch);
  if (plan.row_groups == 1) return {tile.group, entry.quotient, entry.remainder, entry.quotient < plan.gemm.nodes};
  const gpu::Split node = gpu::Divide(entry.quotient, plan.gemm.nodes);
  return {node.quotient, node.remainder, entry.remainder, node.quotient < plan.row_groups};
}

// Entries [begin, begin + count) of the table.
struct TapList {
  int64_t begin;
  int count;
  int32_t batch_rows;  // source rows before those of the row's group and batch entry
  bool hub;            // somebody else sums the row; the list is empty here
};

// The list of row `row` of a tile of rows.
template <typename Plan>
KNNCONV_DEVICE TapList ListOf(const Plan& plan, const TapTile& tile, int64_t row) {
  const gpu::TapGemm& gemm = plan.gemm;
  const TapGroups& groups = plan.groups;
  TapList list{};
  const RowPlace place = PlaceOf(plan, tile, row);
  if (!place.exists) return list;
  list.batch_rows = static_cast<int32_t>(place.group * groups.source_rows + place.entry * gemm.source_rows);
  list.begin = place.node * gemm.table.columns;
  list.count = gemm.table.columns;
  if (gemm.kind == gpu::Taps::kSources) {
    const int32_t* const offsets = gemm.table.offsets + place.group * groups.offsets;
    list.begin = gpu::SourceOffset(offsets, place.node);
    const int64_t count = gpu::SourceOffset(offsets, place.node + 1) - list.begin;
    list.hub = count > gpu::kHubTaps;
    list.count = list.hub ? 0 : static_cast<int>(count);
  }
  list.begin += place.group * groups.taps;
  return list;
}

}  // namespace knnconv::hopper
