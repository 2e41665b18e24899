// How the copy engine sees images of few channels (a box is a tile's halo, or its pixels) and their weights.
#pragma once

#include <cstdint>

#include "gpu/tap_gemm.h"
#include "hopper/tensor_map.h"

namespace knnconv::hopper {

// Boxes of height and width pixels of [images, rows, columns, channels], each a line of `line_bytes`.
inline BoxMap ImageMap(gpu::Element type, const void* address, int64_t images, const int32_t (&size)[2],
                       int64_t channels, const int32_t (&box)[2], int line_bytes) {
  BoxMap map{type, address, 4, {}, {}, {static_cast<uint32_t>(line_bytes / 2), 1, 1, 1}, line_bytes};
  map.size[0] = static_cast<uint64_t>(channels);
  map.size[3] = static_cast<uint64_t>(images);
  uint64_t bytes = 2 * map.size[0];
  for (int i = 0; i < 2; ++i) {
    map.size[1 + i] = static_cast<uint64_t>(size[1 - i]);
    map.box[1 + i] = static_cast<uint32_t>(box[1 - i]);
    map.stride[i] = bytes;
    bytes *= map.size[1 + i];
  }
  map.stride[2] = bytes;
  return map;
}

// Boxes of one slot's weights [slots, depth, columns]: `depth` lines of `columns`; transposed, [slots, columns, depth]:
// `columns` lines of `depth`.
inline BoxMap SlotMap(const gpu::TapGemm& gemm, int depth, int columns) {
  const int inner = gemm.transposed ? depth : columns, outer = gemm.transposed ? columns : depth;
  BoxMap map{gemm.compute_type, gemm.weight, 3, {}, {}, {}, inner * 2};
  map.size[0] = static_cast<uint64_t>(gemm.transposed ? gemm.depth : gemm.columns);
  map.size[1] = static_cast<uint64_t>(gemm.transposed ? gemm.columns : gemm.depth);
  map.size[2] = static_cast<uint64_t>(gemm.slots);
  map.stride[0] = 2 * map.size[0];
  map.stride[1] = map.stride[0] * map.size[1];
  map.box[0] = static_cast<uint32_t>(inner);
  map.box[1] = static_cast<uint32_t>(outer);
  map.box[2] = 1;
  return map;
}

}  // namespace knnconv::hopper
