// How the copy engine sees images of few channels (a box is a tile's halo, or its pixels) and their weights.
#pragma once

#include <cstdint>

#include "hopper/halo_plan.h"
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

// Boxes of `lines` of [images, rows, columns, channels] as they lie in memory, each of `line_bytes`.
inline BoxMap LineMap(gpu::Element type, const void* address, int64_t images, const int32_t (&size)[2],
                      int64_t channels, int lines, int line_bytes) {
  const int element = gpu::ElementBytes(type);
  const auto box = static_cast<uint32_t>(line_bytes / element);
  BoxMap map{type, address, 3, {}, {}, {box, static_cast<uint32_t>(lines), 1}, 0};
  map.size[0] = static_cast<uint64_t>(size[1] * channels);
  map.size[1] = static_cast<uint64_t>(size[0]);
  map.size[2] = static_cast<uint64_t>(images);
  map.stride[0] = map.size[0] * element;
  map.stride[1] = map.stride[0] * map.size[1];
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

// Boxes of 2 by 8 pixels of a class of the result [images, rows, columns, channels].
inline BoxMap ResultMap(const gpu::TapGemm& gemm, const HaloPlan& plan, const PixelClass& pixels) {
  const int64_t element = gpu::ElementBytes(gemm.out_type), pixel = gemm.columns * element;
  const int64_t row = gemm.window.out_size[1] * pixel;
  const int line = ResultColumns(static_cast<int>(element), HaloColumns(gemm));
  BoxMap map{gemm.out_type,
             static_cast<const char*>(gemm.out) + pixels.residue[0] * row + pixels.residue[1] * pixel,
             4, {}, {}, {static_cast<uint32_t>(line), kBlockSide, 2, 1}, static_cast<int>(line * element)};
  map.size[0] = static_cast<uint64_t>(gemm.columns);
  map.size[1] = static_cast<uint64_t>(pixels.size[1]);
  map.size[2] = static_cast<uint64_t>(pixels.size[0]);
  map.size[3] = static_cast<uint64_t>(gemm.batch);
  map.stride[0] = static_cast<uint64_t>(plan.spacing[1] * pixel);
  map.stride[1] = static_cast<uint64_t>(plan.spacing[0] * row);
  map.stride[2] = static_cast<uint64_t>(gemm.nodes * pixel);
  return map;
}

// What the copy engine reads, and for each class of pixels what it writes.
struct HaloMaps {
  CUtensorMap source, weight, out[kMaxClasses];
};

}  // namespace knnconv::hopper
