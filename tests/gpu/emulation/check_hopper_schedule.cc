// Walks Hopper's schedules of weight gradients as its warps do, and holds them to what they promise: each step of each
// tile is done once, and the parts that the reduction adds are those that blocks wrote, each by one of them.
#include <array>
#include <map>
#include <set>

#include "check.h"
#include "hopper/dweight_plan.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;
using namespace knnconv::hopper;

namespace {

using Tile = std::array<int32_t, 2>;  // list, number in it
using Step = std::array<int32_t, 4>;  // list, tile, row, part of the row

Tile TileOf(const DweightSchedule& schedule, const DweightSegment& segment) {
  return {segment.list, segment.row_tile * schedule.column_tiles + segment.column_tile};
}

void CheckSchedule(const std::string& name, const DweightSchedule& schedule) {
  std::map<Step, int> done;
  std::map<Tile, std::set<int32_t>> written;
  std::set<int32_t> parts;
  int wrong = 0;
  plain::RunGrid(schedule.blocks, 32, 0, [&] {
    for (DweightWalk walk(schedule, static_cast<int32_t>(plain::block_index.x)); walk.exists();) {
      const DweightSegment segment = walk.segment();
      walk.Advance(segment.steps);
      if (plain::thread_index.x != 0) continue;
      const Tile tile = TileOf(schedule, segment);
      const bool has_room = segment.part >= 0 && segment.part < schedule.blocks + schedule.tiles();
      wrong += !has_room + !parts.insert(segment.part).second;
      written[tile].insert(segment.part);
      DweightRows rows(schedule, segment);
      for (int32_t i = 0; i < segment.steps; ++i, rows.Advance()) ++done[{tile[0], tile[1], rows.row(), rows.part()}];
    }
  });
  size_t steps = 0;
  for (int32_t list = 0; list < schedule.lists; ++list) {
    for (int32_t number = 0; number < schedule.tiles_of_list(); ++number) {
      const DweightParts added = PartsOf(schedule, list, number);
      std::set<int32_t> expected;
      for (int32_t part = added.first; part < added.end; ++part) expected.insert(part);
      wrong += written[{list, number}] != expected;
      steps += schedule.StepsOf(list);
      for (int32_t step = 0; step < schedule.StepsOf(list); ++step) {
        wrong += done[{list, number, step / schedule.steps_of_row, step % schedule.steps_of_row}] != 1;
      }
    }
  }
  if (done.size() == steps && wrong == 0) return;
  ++failures;
  std::printf("%s: %d wrong, %zu of %zu steps\n", name.c_str(), wrong, done.size(), steps);
}

}  // namespace

int main() {
  for (int round = 0; round < 600; ++round) {
    DweightSchedule schedule = {};
    schedule.row_tiles = Pick(1, 6);
    schedule.column_tiles = Pick(1, 3);
    schedule.steps_of_row = Pick(1, 5);
    std::vector<int32_t> offsets;
    if (round % 2 == 0) {
      schedule.lists = 1;
      schedule.steps = Pick(1, 40) * schedule.steps_of_row;
    } else {
      schedule.lists = Pick(1, 9);
      for (int32_t list = 0, taps = 0; list <= schedule.lists; ++list, taps += Pick(0, 2) * Pick(0, 12)) {
        offsets.insert(offsets.end(), {taps, 0});
      }
      schedule.offsets = offsets.data();
    }
    // A host knows the length of a line of equal lists alone, and starts no idle blocks there.
    schedule.blocks = Pick(1, 30);
    if (round % 2 == 0) schedule.blocks = std::min(schedule.blocks, schedule.Length());
    CheckSchedule("schedule " + std::to_string(round), schedule);
  }
  return Result();
}
