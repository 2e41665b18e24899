#include "gpu/stem.h"

#include <algorithm>

#include "gpu/arithmetic.h"

namespace knnconv::gpu {
namespace {

bool Plan(const TapGemm& gemm, const Device& device, StemPlan* plan) {
  const bool empty = gemm.batch == 0 || gemm.nodes == 0 || gemm.columns == 0 || gemm.source_rows == 0;
  if (gemm.kind != Taps::kColumns || gemm.transposed || empty) return false;
  if (gemm.depth < 1 || gemm.depth > kStemChannels) return false;
  if (int64_t{gemm.columns} * ElementBytes(gemm.out_type) % 16 != 0 || !IsAligned(gemm.out)) return false;
  const int products = StemProducts(gemm.columns);
  const int64_t steps = CeilDiv(gemm.table.columns, 4), row_tiles = CeilDiv(gemm.nodes, 16);
  const int64_t pairs = CeilDiv(gemm.batch, kStemSamples), column_tiles = CeilDiv(gemm.columns, products * 8);
  const int64_t sample_bytes = CeilDiv((gemm.source_rows + 1) * kStemChannels * 2, 16) * 16;
  const int64_t weight_bytes = steps * products * 32 * 8;
  const int64_t weight_at = products * 8 * 4, source_at = weight_at + weight_bytes;
  const int64_t bytes = source_at + kStemSamples * sample_bytes;
  const int64_t kinds = gemm.groups.count() * column_tiles * pairs;
  if (bytes > device.shared_bytes || row_tiles > INT32_MAX / 32 || kinds > INT32_MAX) return false;
  *plan = {};
  plan->column_tiles = static_cast<uint32_t>(column_tiles);
  plan->sample_pairs = static_cast<uint32_t>(pairs);
  plan->row_tiles = static_cast<int32_t>(row_tiles);
  plan->steps = static_cast<int32_t>(steps);
  plan->sample_bytes = static_cast<int32_t>(sample_bytes);
  plan->weight_at = static_cast<int32_t>(weight_at);
  plan->source_at = static_cast<int32_t>(source_at);
  plan->bytes = static_cast<int32_t>(bytes);
  plan->vector_weight = gemm.columns % 8 == 0 && IsAligned(gemm.weight);
  // One block a multiprocessor; fewer than all would leave some idle, more would stage sources and weights again.
  const int64_t share = device.multiprocessors / std::min<int64_t>(kinds, device.multiprocessors);
  plan->parts = static_cast<int32_t>(std::min(share, CeilDiv(row_tiles, kStemWarps)));
  return true;
}

}  // namespace

bool ChooseStem(const TapGemm& gemm, const Device& device, bool forced, StemPlan* plan) {
  // Staging sources and weights wants many rows and taps to pay, and samples to fill the device.
  if (!forced && (gemm.table.columns < 9 || gemm.nodes < 128)) return false;
  return Plan(gemm, device, plan) &&
         (forced || gemm.groups.count() * plan->sample_pairs * plan->parts * 2 >= device.multiprocessors);
}

}  // namespace knnconv::gpu
