// Sorts the taps of dinput's tiles, and holds the rounds to what their readers take from them: each tap of each node is
// there once, in the order of its list where a slot has one round, by ascending slots.
#include <algorithm>
#include <map>
#include <utility>

#include "check.h"
#include "hopper/tile_sorter.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;
using namespace knnconv::hopper;

namespace {

struct Shape {
  int64_t groups, batch, nodes, source_rows;
  int slots, mean, hub_every, empty_every, first_slot = 0;
  bool own_table = true, tiles_apart = false, own_source = true;
};

struct Table {
  std::vector<int32_t> sources, slots, offsets;
  int64_t taps = 0;  // of a group
};

Table MakeTable(const Shape& shape) {
  Table table;
  const int64_t tables = shape.own_table ? shape.groups : 1;
  std::vector<std::vector<std::array<int32_t, 2>>> taps(tables);
  for (auto& own : taps) {
    table.offsets.insert(table.offsets.end(), {0, 0});
    for (int64_t n = 0; n < shape.nodes; ++n) {
      int count = Pick(0, 2 * shape.mean);
      if (shape.hub_every > 0 && n % shape.hub_every == 1) count = kHubTaps + Pick(0, 1);
      if (shape.empty_every > 0 && n % shape.empty_every < shape.empty_every - 1) count = 0;
      std::vector<int32_t> slots(count);
      for (int32_t& slot : slots) slot = Pick(shape.first_slot, shape.slots - 1);
      std::sort(slots.begin(), slots.end());
      for (int32_t slot : slots) own.push_back({slot, Pick(0, static_cast<int>(shape.source_rows) - 1)});
      table.offsets.insert(table.offsets.end(), {static_cast<int32_t>(own.size()), 0});
    }
    table.taps = std::max<int64_t>(table.taps, static_cast<int64_t>(own.size()));
  }
  for (auto& own : taps) {
    own.resize(table.taps, {INT32_MAX, -7});
    for (const auto& [slot, source] : own) {
      table.slots.push_back(slot);
      table.sources.push_back(source);
    }
  }
  return table;
}

// The tiles of a TapGemm, as node_lists.h says, and room for the rounds of each.
struct SortPlan {
  TapGemm gemm;
  TapGroups groups;
  int32_t row_groups;
  int64_t row_tiles, tiles, room;
  SortedRound* rounds;
  int32_t* counts;
};

// A warp's rounds of a block's tiles: every fourth of all.
class RoundsInMemory {
 public:
  explicit RoundsInMemory(const SortPlan& plan) : plan_(plan) {}

  static void Sync() { __syncthreads(); }
  SortedRound& Begin() {
    const int64_t number = next_ - before_;  // of the tile's
    return plan_.rounds[tile_ * plan_.room + (number >= 0 && number < plan_.room ? number : plan_.room - 1)];
  }
  void End() { next_ += kSortThreads / 32; }
  void EndTile(int32_t count) {
    if (threadIdx.x == 0) plan_.counts[tile_] = count;
    before_ += count;
    tile_ += gridDim.x;
  }

 private:
  const SortPlan& plan_;
  int64_t tile_ = blockIdx.x, before_ = 0, next_ = threadIdx.x / 32;
};

void SortTiles(const SortPlan& plan) {
  __shared__ SortRoom room;
  TileSorter<SortPlan, RoundsInMemory> sorter(plan, room, plan);
  for (int64_t tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const knnconv::hopper::TapTile of{tile % plan.row_tiles, static_cast<int>(tile / plan.row_tiles), 0, 0};
    sorter.Sort(ListOf(plan, of, of.row_tile * SortedRound::kRows + threadIdx.x));
  }
}

int64_t CheckTile(const SortPlan& plan, const Table& table, int64_t tile) {
  using Order = RoundOrder;
  const TapGemm& gemm = plan.gemm;
  const int32_t count = plan.counts[tile];
  const SortedRound* const rounds = plan.rounds + tile * plan.room;
  int64_t wrong = count < 1 || count > plan.room;
  if (wrong > 0) return wrong;
  std::map<int32_t, int> rounds_of;
  for (int i = 0; i < count; ++i) ++rounds_of[rounds[i].slot];
  int32_t previous = -1;
  std::vector<std::map<int32_t, std::vector<int32_t>>> found(SortedRound::kRows);
  std::vector<bool> unwritten(SortedRound::kRows);
  for (int i = 0; i < count; ++i) {
    const SortedRound& round = rounds[i];
    wrong += (round.last != 0) != (i == count - 1);
    wrong += round.slot < previous || round.slot >= gemm.slots || (round.slot < 0 && count > 1);
    previous = round.slot;
    int used = 0;
    for (int row = 0; row < SortedRound::kRows; ++row) {
      unwritten[row] = (round.unwritten[row / 32] >> row % 32 & 1) != 0;
      if (round.source[Order::PlaceOfRow(row)] < 0) continue;
      found[row][round.slot].push_back(round.source[Order::PlaceOfRow(row)]);
      ++used;
    }
    // What is added in a pass is of different rows, and lies in the pass's half or is a pair.
    std::map<std::pair<int, int>, std::vector<int32_t>> lines_of;  // of a row and pass
    for (int l = 0; l < Order::kLines; ++l) {
      const LineMark mark = round.mark[l];
      const int32_t source = round.source[Order::PlaceOfLine(l)];
      wrong += (source < 0) != (mark.pass == LineMark::kNoPass);
      if (source < 0) continue;
      ++used;
      const int row = mark.row % LineMark::kPair, half = l / 8 % 2;
      const bool is_pair = mark.row >= LineMark::kPair;
      auto& of = lines_of[{row, mark.pass}];
      if (is_pair && half == 1) {
        wrong += of.size() != 1 || round.mark[l - 8].row != mark.row || round.mark[l - 8].pass != mark.pass;
      } else {
        wrong += !of.empty() || (!is_pair && mark.pass % 2 != half);
      }
      of.push_back(source);
      wrong += mark.pass < round.first_pass || mark.pass >= round.end_pass;
    }
    for (const auto& [at, sources] : lines_of) {  // by passes
      auto& of = found[at.first][round.slot];
      of.insert(of.end(), sources.begin(), sources.end());
    }
    wrong += used == 0 && round.slot >= 0 && rounds_of[round.slot] == 1;
  }
  for (int row = 0; row < SortedRound::kRows; ++row) {
    int64_t at = (tile % plan.row_tiles) * SortedRound::kRows + row, group = tile / plan.row_tiles;
    const int64_t entry = at % gemm.batch, node = at / gemm.batch % gemm.nodes;
    if (plan.row_groups > 1) group = at / gemm.batch / gemm.nodes;
    const bool exists = plan.row_groups > 1 ? group < plan.row_groups : at / gemm.batch < gemm.nodes;
    std::map<int32_t, std::vector<int32_t>> wanted;
    bool hub = false;
    if (exists) {
      const int32_t* const offsets = table.offsets.data() + group * plan.groups.offsets;
      const int32_t begin = offsets[2 * node], end = offsets[2 * node + 2];
      hub = end - begin > kHubTaps;
      for (int32_t p = begin; p < end && !hub; ++p) {
        const int64_t place = group * plan.groups.taps + p;
        const int64_t before = group * plan.groups.source_rows + entry * gemm.source_rows;
        wanted[table.slots[place]].push_back(static_cast<int32_t>(before + table.sources[place]));
      }
    }
    wrong += unwritten[row] != hub;
    for (auto* lists : {&wanted, &found[row]}) {
      for (auto& [slot, list] : *lists) {
        if (rounds_of[slot] > 1) std::sort(list.begin(), list.end());
      }
    }
    wrong += wanted != found[row];
  }
  return wrong;
}

void CheckShape(const Shape& shape, const Setting& setting) {
  Use(setting);
  const Table table = MakeTable(shape);
  // Whatever is read behind the table's end, AddressSanitizer sees.
  Array<uint4> source_blocks((table.sources.size() + 3) / 4), slot_blocks(source_blocks.size());
  std::memcpy(source_blocks.data(), table.sources.data(), table.sources.size() * 4);
  std::memcpy(slot_blocks.data(), table.slots.data(), table.slots.size() * 4);
  TapForm form;
  form.tile = {Source::kExtra, kBoxRows, 64};
  form.groups.count = static_cast<int32_t>(shape.groups);
  form.groups.source_rows = shape.own_source ? shape.batch * shape.source_rows : 0;
  form.groups.taps = shape.own_table ? table.taps : 0;
  form.groups.offsets = shape.own_table ? 2 * (shape.nodes + 1) : 0;
  form.groups.slots = shape.tiles_apart ? shape.slots : 0;
  SortPlan plan{};
  plan.gemm.kind = Taps::kSources;
  plan.gemm.batch = shape.batch;
  plan.gemm.nodes = shape.nodes;
  plan.gemm.source_rows = shape.source_rows;
  plan.gemm.slots = shape.slots;
  plan.gemm.table.sources = reinterpret_cast<const int32_t*>(source_blocks.data());
  plan.gemm.table.slots = reinterpret_cast<const int32_t*>(slot_blocks.data());
  plan.gemm.table.offsets = table.offsets.data();
  plan.gemm.table.taps = table.taps;
  plan.groups = form.groups;
  plan.row_groups = static_cast<int32_t>(RowGroups(form));
  plan.row_tiles = RowTiles(plan.gemm, form);
  plan.tiles = TileGroups(form) * plan.row_tiles;
  plan.room = shape.slots + int64_t{SortedRound::kRows} * kHubTaps / RoundOrder::kLines;
  Array<SortedRound> rounds(plan.tiles * plan.room);
  Array<int32_t> counts(plan.tiles, -1);
  plan.rounds = rounds.data();
  plan.counts = counts.data();
  plain::RunGrid((plan.tiles + 2) / 3, kSortThreads, 0, [&] { SortTiles(plan); });
  int64_t wrong = 0;
  for (int64_t t = 0; t < plan.tiles; ++t) wrong += CheckTile(plan, table, t);
  if (wrong == 0) return;
  ++failures;
  std::printf("%d groups of %d x %d nodes, %d slots, %d taps: %d wrong\n", static_cast<int>(shape.groups),
              static_cast<int>(shape.batch), static_cast<int>(shape.nodes), shape.slots, shape.mean,
              static_cast<int>(wrong));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Shape> shapes = {
      {1, 1, 500, 500, 27, 27, 0, 0},
      {1, 1, 300, 300, 27, 27, 50, 0},
      {1, 3, 200, 77, 9, 9, 0, 3},
      {1, 1, 140, 90, 1, 30, 0, 0},
      {1, 1, 200, 90, 2, 100, 9, 0},
      {1, 1, 333, 90, 100, 27, 70, 5},
      {1, 2, 150, 40, 400, 5, 0, 0, 200},
      {1, 1, 129, 40, 64, 4, 0, 0, 33},
      {1, 1, 400, 40, 27, 1, 0, 130},
      {3, 1, 57, 40, 9, 9, 20, 0},
      {4, 2, 70, 40, 9, 20, 0, 2, 0, false},
      {3, 3, 50, 40, 40, 20, 0, 0, 0, true, true},
      {2, 1, 300, 40, 27, 27, 1, 0},
      {2, 9, 30, 5, 3, 120, 4, 0, 0, false, true, false},
      {1, 1, 127, 30, 27, 0, 0, 0},
      {1, 1, 256, 30, 1, 128, 2, 0}};
  for (int i = argc > 1 ? std::atoi(argv[1]) : 0; i > 0; --i) {
    shapes.push_back({Pick(1, 4), Pick(1, 9), Pick(1, 200), Pick(1, 100), Pick(1, 90), Pick(0, 40),
                      Pick(0, 1) * Pick(1, 90), Pick(0, 1) * Pick(1, 20), 0, Pick(0, 1) == 1, Pick(0, 1) == 1,
                      Pick(0, 1) == 1});
  }
  for (const Setting& setting : kSettings) {
    for (const Shape& shape : shapes) CheckShape(shape, setting);
  }
  return Result();
}
