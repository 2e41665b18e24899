// dinput of a table for up to 4 channels of x, such as the first layer of a network: two kernels, of stem_order.cu and
// stem_dinput_kernel.h, and when they run.
//
// A thread block has one sample. It multiplies as many rows of g with all slots as shared memory holds the products of,
// a *stretch* of rows, and adds them up where the taps of that stretch say:
//
//     P[slot, m, :] = g[b, m, :] @ weight[slot]^T          dx[b, n, :] = sum over taps (m, slot) of n:  P[slot, m, :]
//
// Every row of g has a tap in nearly every slot of a stem, so that few products are in vain, and a tap costs a few
// additions where the portable kernels multiply a padded row of g once more.
#pragma once

#include "gpu/arithmetic.h"
#include "gpu/device.h"
#include "gpu/divisor.h"
#include "gpu/stem.h"
#include "gpu/tap_gemm.h"

namespace knnconv::gpu {

inline constexpr int kOrderedSources = 64;  // whose taps stand together, by stretch
inline constexpr int kMostStretches = 40;
inline constexpr int kMostStemDepth = 96;   // channels of g, of which registers hold a tile of weights whole
inline constexpr int kStemDinputWarps = 16;

// Bytes from a row of g to the next in shared memory, of so many times 32 channels: 8 rows' 16 bytes lie in different
// banks.
constexpr int StemRowPitch(int loads) { return loads * 64 + 16; }

struct StemDinputPlan {
  int32_t stretch, stretches;  // rows of g of one, and their number
  int32_t pitch;               // rows of g from one slot's products to the next
  int32_t row_step, slot_step;  // of a tap's place from one row of the stretch, or slot, to the next
  int32_t slot_warps, row_ways;  // warps that have different slots, and how often: ways share a stretch's rows
  int32_t blocks;              // of kOrderedSources sources
  int32_t singles_at, sums_at, rows_at, bytes;  // places in shared memory; products of channel pairs begin at 0
  Divisor by_stretch;
  int32_t nowhere;             // a place whose products are 0
  // What the first kernel writes, of each group. A source's taps of a stretch are the places of its first quad, and
  // those of further quads if there are more. What a quad lacks is nowhere.
  uint4* firsts;               // [groups, stretches, blocks, kOrderedSources / 2]: the first quads of two sources
  uint2* rests;                // the same shape: where further quads of two sources begin, and the numbers of each
  uint2* quads;                // [groups * group_quads], those of a group's block from BlockQuads on
  int64_t group_quads;

  // Of a block whose first tap is `begin` in the source order: at most a quad for every four taps.
  KNNCONV_HOST_DEVICE static int64_t BlockQuads(int64_t begin) { return (begin + 3) / 4; }
};

// The next four are common to these rules and to those of Hopper's kernel (hopper/stem_dinput.h). Whether `gemm` is
// dinput over a table for up to kStemChannels channels of x, of operands that the kernels read.
bool IsStemDinput(const TapGemm& gemm);
// Rows of g of a stretch: of `rows`, in as few stretches as may be, all alike, where `fits` says for how many times 8
// rows there is room. 0: not for 8.
template <typename Fits>
int64_t StretchRows(int64_t rows, const Fits& fits) {
  int64_t units = CeilDiv(rows, 8);
  while (units > 0 && !fits(units)) --units;
  return units == 0 ? 0 : CeilDiv(rows, CeilDiv(rows, units * 8));
}
// Lays out what the first kernel writes, where stretches have so many rows of g. False where numbers are too long, or
// the workspace too short.
bool LayOutOrder(const TapGemm& gemm, int64_t stretch, StemDinputPlan* plan);
// Whether enough products have a tap, sources have one in each stretch, and samples fill the device.
bool PaysAsStem(const TapGemm& gemm, const Device& device, const StemDinputPlan& plan);

// Whether the stem kernels of dinput are to compute `gemm`: where they can if `forced`, else where they are expected to
// be the fastest, too; and how they are laid out.
bool ChooseStem(const TapGemm& gemm, const Device& device, bool forced, StemDinputPlan* plan);

Status LaunchStemOrder(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan);

// Instantiated in a source of its own for each type of products.
template <typename T>
Status LaunchStemDinput(const LaunchSite& site, const TapGemm& gemm, const StemDinputPlan& plan, int shared_limit);
extern template Status LaunchStemDinput<Half>(const LaunchSite&, const TapGemm&, const StemDinputPlan&, int);
extern template Status LaunchStemDinput<BFloat>(const LaunchSite&, const TapGemm&, const StemDinputPlan&, int);

// Writes all rows, those of hubs too.
inline Status RunStemDinput(const LaunchSite& site, const TapGemm& gemm, const Device& device,
                            const StemDinputPlan& plan) {
  KNNCONV_GPU_RETURN_IF_ERROR(LaunchStemOrder(site, gemm, plan));
  return gemm.compute_type == Element::kF16 ? LaunchStemDinput<Half>(site, gemm, plan, device.shared_bytes)
                                            : LaunchStemDinput<BFloat>(site, gemm, plan, device.shared_bytes);
}

}  // namespace knnconv::gpu
