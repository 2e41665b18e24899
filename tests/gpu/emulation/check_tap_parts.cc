// Holds the cuts of two lists to what they promise: blocks multiply every step once, and about equally many.
#include <algorithm>
#include <vector>

#include "check.h"
#include "hopper/tap_parts.h"

using namespace knnconv::gpu::check;
using namespace knnconv::hopper;

namespace {

void CheckCut(int longer, int shorter, bool has_shorter) {
  const PairCut cut = PairCut::Of(longer, shorter, has_shorter);
  std::vector<int> times[2] = {std::vector<int>(longer), std::vector<int>(shorter)};
  int most = 0, adding = 0, wrong = 0;
  for (int rank = 0; rank < 2; ++rank) {
    int steps = 0;
    for (int turn = 0; cut.Has(rank, turn); ++turn) {
      const TilePart part = cut.Part(rank, turn);
      for (int step = part.steps.begin; step < part.steps.end; ++step) ++times[part.longer ? 0 : 1][step];
      steps += part.steps.end - part.steps.begin;
      adding += part.adds;
      wrong += part.adds && (!part.longer || cut.Has(rank, turn + 1));  // what the longer list's blocks do last
    }
    most = std::max(most, steps);
  }
  for (const std::vector<int>& of : times) wrong += std::count(of.begin(), of.end(), 1) != std::ptrdiff_t(of.size());
  wrong += adding != 0 && adding != 2;
  wrong += most > (longer + shorter) / 2.0 + 5;
  if (wrong == 0) return;
  ++failures;
  std::printf("lists of %d and %d steps: %d wrong, %d for a block\n", longer, shorter, wrong, most);
}

}  // namespace

int main() {
  for (int longer = 0; longer < 200; ++longer) {
    for (int shorter = 0; shorter <= longer; ++shorter) CheckCut(longer, shorter, true);
    CheckCut(longer, 0, false);
  }
  return Result();
}
