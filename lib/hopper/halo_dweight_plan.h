// How a halo kernel for dweight is laid out on Hopper: how dw lies in registers, and stages in shared memory.
//
// A product has 64 columns of g as its rows and 96 rows of dw as its columns: the channels (16 or 32 as they are
// stored) of one tap, then of the tap below and so on, whose lines of the halo lie equally far apart. That is a group;
// a team has three in its registers. More than 32 channels are stored as 64: groups have 192 rows then, of three taps,
// and a thread block has one of them, which is its kind.
//
// Up to 4 channels are gathered: threads write each pixel's patch, its taps one behind the other with 4 channels each,
// as a line of 64 elements. A product has these as its columns, and there is one group.
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
// Of shared memory besides a plan's.
inline constexpr int kDweightBarrierBytes = kDweightTeams * kDweightStages * 8 + kOnes * 2;

inline bool HasPatches(const gpu::Dweight& dweight) { return dweight.channels <= gpu::kMostQuadChannels; }

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
  // Partial sums are [slices, column_tiles, kinds, units, part_threads, 4], as a team's threads hold them: a unit is 8
  // rows. Row `bias_row` of the first kind is db.
  int32_t units, part_threads, bias_row;
  int32_t group_units, groups_of_kind;
  int32_t taps_down, taps_across;  // of dw, all below each other where patches are gathered
};

inline bool IsWide(const HaloDweightPlan& plan) { return plan.pixel_bytes == 128; }

// Whether Hopper's halo kernels are to compute `dweight`: where they can if `forced`, else where they are expected to
// be the fastest, too; and how they are laid out.
bool ChooseHalo(const gpu::Dweight& dweight, const gpu::DenseTaps& taps, const gpu::Device& device, bool forced,
                HaloDweightPlan* plan);

}  // namespace knnconv::hopper
