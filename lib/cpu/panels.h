// Weights as float32 panels, in the order in which tiles read them.
//
// Tile form: [panel][slot][depth][columns], 32 columns a panel, 16 in a last panel that needs no more.
// Dot form, for few columns: [slot][column][depth], depth rounded up to kDotLanes.
// `depth` counts the reduced channels (C in forward, O in dinput), `columns` the others; the fill is zero.
// Pair form: the tile form of bfloat16 pairs, each in the place of a float; depth then counts pairs. The last pair of
// an odd number of channels is padded with a zero.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/operands.h"
#include "cpu/parallel.h"

namespace knnconv::cpu {

class Panels {
 public:
  Panels(int64_t slots, int64_t depth, int64_t columns)
      : slots_(slots), depth_(depth), columns_(columns),
        dot_(columns <= kDotColumns && columns * CeilDiv(depth, kDotLanes) < depth),
        steps_(dot_ ? CeilDiv(depth, kDotLanes) * kDotLanes : depth) {}

  // The pair form where the instruction set, the operands and the shape allow it. Source rows are then read as depth()
  // pairs, as if they were floats, unless those are padded.
  static Panels MakePairs(const Isa& isa, Source* read, int64_t slots, int64_t depth, int64_t columns) {
    constexpr int64_t kMinPadded = 9;  // shorter taps are better joined, as floats
    Panels panels(slots, depth, columns);
    if (isa.pair_product == nullptr || *read != Source::kBF16 || panels.dot_) return panels;
    panels.padded_ = depth % 2 != 0;
    if (panels.padded_ && depth < kMinPadded) return Panels(slots, depth, columns);
    panels.pairs_ = true;
    panels.depth_ = panels.steps_ = CeilDiv(depth, 2);
    if (!panels.padded_) *read = Source::kF32;
    return panels;
  }

  int64_t slots() const { return slots_; }
  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  bool dot() const { return dot_; }
  bool pairs() const { return pairs_; }
  bool padded() const { return padded_; }
  // Elements of a source row, as they are read.
  int64_t row_elements() const { return padded_ ? 2 * depth_ - 1 : depth_; }
  // k-steps that a tap takes in an A tile.
  int64_t steps() const { return steps_; }

  int64_t count() const { return dot_ ? 1 : CeilDiv(columns_, kPanelColumns); }
  int PanelColumns(int64_t panel) const {
    return columns_ - panel * kPanelColumns <= kPanelColumns / 2 ? kPanelColumns / 2 : kPanelColumns;
  }
  // Floats of one group's panels; at most slots * depth * (columns rounded up to 64).
  int64_t size() const {
    if (dot_) return slots_ * columns_ * steps_;
    return slots_ * depth_ * ((count() - 1) * kPanelColumns + (count() > 0 ? PanelColumns(count() - 1) : 0));
  }

  // Where k-step d of a slot lies, in units that Address scales; consecutive positions are consecutive in memory.
  int64_t Position(int64_t slot, int64_t d) const { return slot * (dot_ ? columns_ * steps_ : depth_) + d; }
  const float* Address(const float* packed, int64_t panel, int64_t position) const {
    if (dot_) return packed + position;
    return packed + panel * slots_ * depth_ * kPanelColumns + position * PanelColumns(panel);
  }

 private:
  int64_t slots_, depth_, columns_;
  bool dot_;
  int64_t steps_;
  bool pairs_ = false, padded_ = false;
};

// Which channels of weight [V, C, O] are reduced.
enum class Reduce { kInput, kOutput };

// Packs `groups` matrices of a weight operand. `packed` holds groups * panels.size() floats.
void PackWeights(ffi::ThreadPool& pool, const Isa& isa, const void* weight, Dtype dtype, int64_t groups, Reduce reduce,
                 const Panels& panels, float* packed);

}  // namespace knnconv::cpu
