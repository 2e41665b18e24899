#include "hopper/tap_choice.h"

#include <algorithm>
#include <cmath>

#include "gpu/arithmetic.h"
#include "hopper/device.h"
#include "hopper/sample_plan.h"

namespace knnconv::hopper {
namespace {

using gpu::CeilDiv, gpu::IsAligned;

// What tiles cost, in microseconds of an H200: a step of the main loop, and a tile besides. Of two tiles, where two
// share a multiprocessor.
struct TileCost {
  double step, tile;
};

// Fitted to the times of tests/gpu/hopper/check.cu, each column by itself. Only ratios within a column matter. Blocks
// that share tiles exchange sums at the end of one.
struct FormCost {
  TileForm form;
  TileCost table, lists, pixels;  // lists: of a source order, whose lengths differ
};
constexpr FormCost kBoxForms[] = {
    {{Source::kBoxes, 128, 64}, {0.405, 4.05}, {0.52, 3.2}, {0.40, 2.5}},
    {{Source::kBoxes, 256, 64}, {0.415, 4.0}, {0.42, 5.1}, {0.35, 3.0}},
    {{Source::kBoxes, 128, 96}, {}, {0.74, 3.1}, {0.60, 4.2}},
    {{Source::kBoxes, 128, 128}, {0.68, 3.7}, {0.82, 3.1}, {0.67, 4.2}},
    {{Source::kBoxes, 256, 128}, {0.62, 4.4}, {0.66, 4.7}, {0.58, 4.4}},
    {{Source::kBoxes, 128, 192}, {0.485, 3.6}, {0.64, 0.8}, {0.49, 3.5}},
    {{Source::kBoxes, 128, 256}, {0.62, 3.9}, {0.665, 3.6}, {0.56, 4.5}},
    {{Source::kBoxes, 192, 256}, {}, {}, {0.75, 16.5}},
    {{Source::kBoxes, 128, 128, false, 2}, {}, {0.82, 5.1}, {}},
    {{Source::kBoxes, 128, 256, false, 2}, {0.63, 5.7}, {}, {}},
    {{Source::kBoxes, 128, 128, false, 2, 2}, {}, {0.40, 6.5}, {}},
    {{Source::kBoxes, 128, 192, false, 2, 2}, {}, {0.53, 6.8}, {}},
    {{Source::kBoxes, 128, 256, false, 2, 2}, {}, {0.70, 8.5}, {}},
};
constexpr double kAlone = 0.7;  // a tile alone on a multiprocessor, of the time of two that share it
// A step of tiles of 256 rows, of what it takes otherwise, where each tap's last one is half empty, with 96, 160 or 224
// channels. Those of 256 columns take as long as ever.
constexpr double kHalfEmpty = 0.95;

TileCost CostOf(const gpu::TapGemm& gemm, const FormCost& cost) {
  if (gemm.kind == gpu::Taps::kWindow) return cost.pixels;
  if (gemm.kind == gpu::Taps::kSources) return cost.lists;
  const int32_t left = gemm.depth % kStepDepth;
  const bool half_empty = left > 0 && left <= kStepDepth / 2 && cost.form.rows == 2 * kBoxRows;
  return {cost.table.step * (half_empty ? kHalfEmpty : 1.0), cost.table.tile};
}

// Whether there are such tiles, and less than 64 of their columns do not exist.
bool HasForm(const gpu::TapGemm& gemm, const TileForm& tile) {
  if (tile.columns > 64 && tile.columns - gemm.columns >= 64) return false;
  if (IsOfPixels(tile) && gemm.kind != gpu::Taps::kWindow) return false;
  return (tile.columns != 96 || HasTile96(gemm)) && (tile.split == 1 || CanSplit(gemm, tile));
}

// The mean length of lists, and that of the longest: were a source's taps drawn at random, lengths would be Poisson's,
// and the longest of n lists lies about sqrt(2 log n) deviations above the mean.
struct ListLengths {
  double mean, longest;
};

ListLengths LengthsOf(const gpu::TapGemm& gemm, int64_t class_count) {
  switch (gemm.kind) {
    case gpu::Taps::kRows:
    case gpu::Taps::kColumns:
      return {static_cast<double>(gemm.table.columns), static_cast<double>(gemm.table.columns)};
    case gpu::Taps::kSources: {
      const double nodes = static_cast<double>(gemm.nodes), mean = static_cast<double>(gemm.table.taps) / nodes;
      return {mean, mean + std::sqrt(2 * std::log(nodes) * mean)};
    }
    default:
      const double taps = gemm.slots / static_cast<double>(class_count);
      return {taps, taps};
  }
}

double Microseconds(const gpu::TapGemm& gemm, const FormCost& cost, const TapForm& form, int64_t multiprocessors) {
  const TileForm& tile = cost.form;
  const int64_t class_count = std::max<int64_t>(form.classes.count, 1);
  const int64_t row_tiles = TileGroups(form) * class_count * RowTiles(gemm, form);
  const int64_t tiles = row_tiles * CeilDiv(gemm.columns, tile.columns);
  const bool two_fit = tile.rows == kBoxRows && tile.columns <= 128 && tile.tiles == 1;  // on a multiprocessor
  const int64_t alone = std::max<int64_t>(multiprocessors / tile.split, 1);
  const int64_t turns = tile.tiles == 1 ? tiles : PairClusters(tiles, tile.columns, alone);
  const int64_t at_once = two_fit ? 2 * alone : alone, left = turns % at_once;
  const double last_round = left == 0 ? 0.0 : two_fit && left <= alone ? kAlone : 1.0;
  const TileCost of = CostOf(gemm, cost);
  const ListLengths taps = LengthsOf(gemm, class_count);
  const double of_tap = static_cast<double>(CeilDiv(gemm.depth, kStepDepth)) * of.step / tile.split;
  const double mean = taps.mean * static_cast<double>(tiles) / static_cast<double>(turns) * of_tap;
  const double even = (static_cast<double>(turns / at_once) + last_round) * (mean + of.tile);
  return std::max(even, taps.longest * of_tap * (two_fit ? kAlone : 1.0) + of.tile);
}

// What the copy engine and the kernels can address.
bool Takes(const gpu::TapGemm& gemm, const gpu::Device& device) {
  if (!IsHopper(device) || gemm.source_type != gemm.compute_type) return false;
  if (gemm.out_type != gemm.compute_type && gemm.out_type != gpu::Element::kF32) return false;
  if (gemm.transposed && gemm.bias != nullptr) return false;  // no operation has both
  if (gemm.depth % 8 != 0 || gemm.columns % 8 != 0) return false;  // lines of multiples of 16 bytes
  if (!IsAligned(gemm.source) || !IsAligned(gemm.weight) || !IsAligned(gemm.out) || !IsAligned(gemm.bias)) return false;
  // Tensor maps have no empty dimensions.
  return gemm.groups.count() > 0 && gemm.batch > 0 && gemm.nodes > 0 && gemm.columns > 0 && gemm.source_rows > 0 &&
         gemm.depth > 0 && gemm.slots > 0;
}

bool Pays(const gpu::TapGemm& gemm) {
  constexpr int kLeastDepth = 48, kLeastColumns = 32;
  return gemm.depth >= kLeastDepth && gemm.columns >= kLeastColumns;
}

// Source rows of all groups and batch entries.
int64_t SourceRows(const gpu::TapGemm& gemm, const TapGroups& groups) {
  return gemm.batch * gemm.source_rows + (groups.count - 1) * groups.source_rows;
}

// Whether rows can be gathered one by one: source rows have 31 bits, and lists are read 16 bytes at a time.
bool HasRows(const gpu::TapGemm& gemm, const TapGroups& groups) {
  if (gemm.kind == gpu::Taps::kWindow || SourceRows(gemm, groups) > INT32_MAX) return false;
  return IsAligned(gemm.table.sources) && IsAligned(gemm.table.slots);
}

TileForm ChooseTile(const gpu::TapGemm& gemm, const PixelClasses& classes, const TapGroups& groups,
                    int multiprocessors) {
  if (FitsSample(gemm)) return {Source::kSample, kSampleRows, kSampleColumns};
  // Boxes of a small batch are mostly empty. But rows of lists take as many products as the node has taps of a slot
  // that has the most.
  const bool lists = gemm.kind == gpu::Taps::kRows || gemm.kind == gpu::Taps::kSources;
  const int64_t least_batch_of_boxes = lists ? 10 : 64;
  if (HasRows(gemm, groups) && gemm.batch < least_batch_of_boxes) {
    if (gemm.kind == gpu::Taps::kSources) {
      return {Source::kExtra, kBoxRows, gemm.columns <= 64 ? 64 : 128};
    }
    return {Source::kRows, kBoxRows, gemm.columns <= 64 ? 64 : gemm.columns <= 128 ? 128 : 256};
  }
  if (CanStay(gemm)) return {Source::kBoxes, kBoxRows, 64, true};
  const FormCost* best = nullptr;
  double least = 0.0;
  for (const FormCost& cost : kBoxForms) {
    if (!HasForm(gemm, cost.form)) continue;
    const double time = Microseconds(gemm, cost, {cost.form, classes, groups}, multiprocessors);
    if (best != nullptr && time >= least) continue;
    best = &cost;
    least = time;
  }
  return best->form;
}

}  // namespace

bool FindGroups(const gpu::TapGemm& gemm, TapGroups* groups) {
  const gpu::GroupShape& shape = gemm.groups;
  const gpu::TableTaps& table = gemm.table;
  int64_t source, weight, bias, slots;
  if (!gpu::FindStep(shape, gemm.source_groups, &source) || !gpu::FindStep(shape, gemm.weight_groups, &weight) ||
      !gpu::FindStep(shape, gemm.bias_groups, &bias) || !gpu::FindStep(shape, table.slot_groups, &slots) ||
      !gpu::FindStep(shape, table.source_groups, &groups->taps) ||
      !gpu::FindStep(shape, table.offset_groups, &groups->offsets)) {
    return false;
  }
  if (gemm.kind != gpu::Taps::kColumns && slots != groups->taps) return false;
  if (shape.count() * std::max<int64_t>(gemm.slots, gemm.batch) > INT32_MAX) return false;
  groups->count = static_cast<int32_t>(shape.count());
  groups->source_rows = source / gemm.depth;
  groups->slots = weight == 0 ? 0 : gemm.slots;
  groups->bias = static_cast<int32_t>(bias);
  return true;
}

int64_t RowGroups(const TapForm& form) {
  const bool shares = form.groups.slots == 0 && form.groups.bias == 0;
  return shares && form.tile.source != Source::kBoxes ? form.groups.count : 1;
}

int64_t TileGroups(const TapForm& form) { return form.groups.count / RowGroups(form); }

bool CanStay(const gpu::TapGemm& gemm) {
  int64_t weight;
  return gemm.depth <= kStepDepth && gemm.columns <= 64 && gemm.slots <= kResidentSlots &&
         gpu::FindStep(gemm.groups, gemm.weight_groups, &weight) && weight == 0;
}

bool HasTile96(const gpu::TapGemm& gemm) { return gemm.transposed && gemm.columns > 64 && gemm.columns <= 96; }

bool CanSplit(const gpu::TapGemm& gemm, const TileForm& tile) {
  if (tile.tiles == 2) return gemm.kind == gpu::Taps::kSources && tile.columns >= 128;
  return gemm.kind != gpu::Taps::kWindow && tile.columns == (gemm.transposed ? 128 : 256);
}

int64_t PairClusters(int64_t tiles, int columns, int64_t at_once) {
  const int64_t pairs = CeilDiv(tiles, 2);
  if (tiles <= at_once) return tiles;
  return columns <= 128 ? pairs : std::max(pairs, at_once);
}

// Whole tiles of boxes where nodes differ in their slots, since a tile has one slot at a time.
int32_t Parts(const gpu::TapGemm& gemm, const TileForm& tile) {
  const int64_t boxes = tile.rows / kBoxRows, parts = CeilDiv(gemm.batch, kBoxRows);
  return static_cast<int32_t>(gemm.kind == gpu::Taps::kColumns ? parts : CeilDiv(parts, boxes) * boxes);
}

int64_t RowTiles(const gpu::TapGemm& gemm, const TapForm& form) {
  const TileForm& tile = form.tile;
  if (tile.source != Source::kBoxes) return CeilDiv(RowGroups(form) * gemm.batch * gemm.nodes, tile.rows);
  if (gemm.kind == gpu::Taps::kWindow) {
    int64_t most = 0;
    for (int i = 0; i < form.classes.count; ++i) {
      const PixelClass& pixels = form.classes.of[i];
      most = std::max(most, CeilDiv(gemm.batch * pixels.size[0] * pixels.size[1], tile.rows));
    }
    return most;
  }
  return CeilDiv(gemm.nodes * Parts(gemm, tile), tile.rows / kBoxRows);
}

bool ChooseForm(const gpu::TapGemm& gemm, const gpu::Device& device, bool forced, TapForm* form) {
  *form = {};
  if (!Takes(gemm, device) || !(forced || Pays(gemm)) || !FindGroups(gemm, &form->groups)) return false;
  if (gemm.kind == gpu::Taps::kWindow) {
    form->classes = PixelClassesOf(gemm.window);
    if (form->classes.count == 0) return false;
  }
  form->tile = ChooseTile(gemm, form->classes, form->groups, device.multiprocessors);
  return true;
}

}  // namespace knnconv::hopper
