// Weights as float32 panels, in the order in which tiles read them.
//
// Tile form: [panel][slot][depth][columns], 32 columns a panel, 16 in a last panel that needs no more.
// Dot form, for few columns: [slot][column][depth], depth rounded up to kDotLanes.
// `depth` counts the reduced channels (C in forward, O in dinput), `columns` the others; the fill is zero.
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

  int64_t slots() const { return slots_; }
  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  bool dot() const { return dot_; }
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
};

// Which channels of weight [V, C, O] are reduced.
enum class Reduce { kInput, kOutput };

// Packs `groups` matrices of a weight operand. `packed` holds groups * panels.size() floats.
void PackWeights(ffi::ThreadPool& pool, const Isa& isa, const void* weight, Dtype dtype, int64_t groups, Reduce reduce,
                 const Panels& panels, float* packed);

}  // namespace knnconv::cpu
