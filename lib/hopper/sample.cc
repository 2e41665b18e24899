#include "hopper/sample.h"

#include "hopper/sample_launch.h"

namespace knnconv::hopper {

gpu::Status RunSamples(const gpu::LaunchSite& site, const gpu::TapGemm& gemm, const gpu::Device& device) {
  SampleTask task = {};
  SampleCut cut;
  if (!site.prepare) {
    cut = CutSamples(gemm, device.multiprocessors);
    task.x = gemm.source;
    task.weight = gemm.weight;
    task.indices = gemm.table.sources;
    task.bias = gemm.bias;
    task.out = gemm.out;
    task.out_type = gemm.out_type;
    task.zero_empty_rows = gemm.zero_empty_rows;
    task.items = static_cast<int32_t>(cut.items);
    task.strips = cut.strips;
    task.samples_held = cut.samples_held;
    task.by_parts = gpu::Divisor(static_cast<uint32_t>(cut.parts));
    task.nodes = static_cast<int32_t>(gemm.nodes);
    task.sources = static_cast<int32_t>(gemm.source_rows);
    task.slots = gemm.slots;
    task.columns = gemm.columns;
    task.sample_room = static_cast<int32_t>(SampleBytes(gemm));
  }
  return gemm.compute_type == gpu::Element::kF16
             ? LaunchSamples<gpu::Half>(site, task, cut.blocks, cut.shared_bytes)
             : LaunchSamples<gpu::BFloat>(site, task, cut.blocks, cut.shared_bytes);
}

}  // namespace knnconv::hopper
