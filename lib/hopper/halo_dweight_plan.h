// How a halo kernel for dweight is laid out on Hopper: how dw lies in registers, and stages in shared memory.
//
// A product has 64 columns of g as its rows and 96 rows of dw as its columns: the channels (16 or 32 as they are
// stored) of one tap, then of the tap below and so on, whose lines of the halo lie equally far apart. That is a group;
// a team has three in its registers. More than 32 channels are stored as 64: groups have 192 rows then, of three taps,
// and a thread block has one of them, which is its kind.
//
// Up to 3 channels with a stride of 1 or 2 are read from pairs of pixels (halo_plan.h): a group is the taps of two
// neighbouring columns, of up to 7 lines, with 4 channels each, and a team has four of them; or two of up to 3 lines.
//
// Other strides, images that do not fill tiles and 4 channels are gathered, where taps are few: threads write each
// pixel's patch, its taps one behind the other with 4 channels each, as a line of 64 elements. A product has these as
// its columns, and there is one group.
#pragma once

#include <cstdint>

#include "gpu/dweight.h"
#include "hopper/halo_plan.h"

namespace knnconv::hopper {

inline constexpr int kDweightTeams = 2;  // warpgroups of a thread block, each with tiles of its own
inline constexpr int kDweightStages = 4;
inline constexpr int kDweightGroups = 3;
inline constexpr int kGroupRows = 96;       // of dw
inline constexpr int kWideRows = 192;       // of dw, in groups of more than 32 channels
inline constexpr int kDweightColumns = 64;  // of g
inline constexpr int kDweightPixels = 128;  // of a tile
inline constexpr int kDweightSteps = kDweightPixels / 16;
inline constexpr int kOnes = 16 * 8;  // elements: what g is multiplied by for db
inline constexpr int kPatchTaps = 9;
inline constexpr int kPatchRows = 64;  // elements of a patch's line
inline constexpr int kPatchBytes = kPatchRows * 2;
inline constexpr int kPatchChunks = (kPatchTaps + 1) / 2;  // of 16 bytes: taps, and one more element
inline constexpr int kTilePatchBytes = kDweightPixels * kPatchBytes;
inline constexpr int kPairStages = 2;  // halos of pairs and of lines that a team has room for
// Of shared memory besides a plan's.
inline constexpr int kDweightBarrierBytes = kDweightTeams * kDweightStages * 8 + kOnes * 2;

// Groups of pairs, the lines of taps of each, and how many blocks share a multiprocessor.
struct PairGroups {
  int groups, taps_down, blocks;
};
inline constexpr PairGroups kFewPairs{2, 3, 2}, kManyPairs{4, 7, 1};

struct HaloDweightPlan : gpu::HaloGeometry {
  uint32_t column_tiles, slices, kinds;  // a thread block for each triple
  int32_t origin[2];                     // of a tile's halo, from its own place; [0] is vertical
  int32_t pixel_bytes, halo_line;
  int32_t cotangent_bytes;               // of a pixel of g's tile
  int32_t tap_elements_log2;             // of a tap as it is stored: 2 (patches), 4, 5 or 6
  int32_t taps_of_group, pieces;         // groups of a column of taps
  // Bytes in the halo from a step's pixels to the next step's, from its first 8 to its second, from a tap to the one
  // below.
  int32_t step_pitch, half_pitch, tap_pitch;
  // A stage is a halo and, halo_room bytes behind its start, a tile of g; all at multiples of 1024.
  int32_t halo_room, stage_bytes, copied_bytes, stages, bytes;
  // With pairs, behind stages each team has halos of them and lines as they lie in memory.
  PairLines pair_lines;
  int32_t pairs_at, pair_bytes, raw_room;
  // Partial sums are [slices, column_tiles, kinds, units, part_threads, 4], as a team's threads hold them: a unit is 8
  // rows. Of the first `weight_rows`, row `bias_row` of the first kind is db where it lies among them.
  int32_t units, part_threads, weight_rows, bias_row;
  int32_t group_units, groups_of_kind;
  int32_t taps_beside_log2;        // of a group's taps beside each other: 0, with pairs 1
  int32_t taps_down, taps_across;  // of dw, all below each other where patches are gathered
};

inline bool HasPairs(const HaloDweightPlan& plan) { return plan.pair_lines.pairs > 0; }
inline bool HasPatches(const HaloDweightPlan& plan) { return plan.tap_elements_log2 == 2 && !HasPairs(plan); }

inline bool IsWide(const HaloDweightPlan& plan) { return plan.pixel_bytes == 128; }

// Whether Hopper's halo kernels are to compute `dweight`: where they can if `forced`, else where they are expected to
// be the fastest, too; and how they are laid out.
bool ChooseHalo(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, bool forced,
                HaloDweightPlan* plan);

}  // namespace knnconv::hopper
