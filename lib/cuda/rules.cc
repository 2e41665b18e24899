#include "cuda/rules.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "gpu/dweight_choice.h"
#include "gpu/handler.h"
#include "gpu/tap_choice.h"

namespace nb = nanobind;

namespace knnconv {
namespace {

using gpu::Element;

// A device: multiprocessors, ten times the compute capability, bytes of shared memory that a block may ask for.
using DeviceFigures = std::array<int, 3>;
// What a call forces: the name of a family or "", rows, columns and staging of a tile or -1 (docs/handlers.md).
using Wanted = std::tuple<std::string, std::array<int, 3>>;
using Pair = std::array<int32_t, 2>;
// Kernel, stride, padding, dilation, size of x (forward, dweight) or g (dinput), size of the other. Zeros for a table.
using Window = std::array<Pair, 6>;
// Group dimensions: those of the call, or an operand's own.
using Sizes = std::vector<int64_t>;

// Where XLA's buffers start: at multiples of 256 bytes.
void* SomeAddress() { return reinterpret_cast<void*>(uintptr_t{1} << 12); }

gpu::Device DeviceOf(const DeviceFigures& figures) {
  return {static_cast<int16_t>(figures[0]), static_cast<int16_t>(figures[1]), figures[2]};
}

Element ElementOf(const std::string& name) {
  if (name == "float32") return Element::kF32;
  if (name == "float16") return Element::kF16;
  if (name == "bfloat16") return Element::kBF16;
  throw nb::value_error(("no kernel has elements of type " + name).c_str());
}

void Fill(const Wanted& given, gpu::TileChoice* wanted) {
  const auto& [kernel, tile] = given;
  if (!kernel.empty() && !gpu::FindKernelFamily(kernel, &wanted->kernel)) throw nb::value_error(kernel.c_str());
  wanted->rows = tile[0];
  wanted->columns = tile[1];
  wanted->set_staging(tile[2]);
}

void RaiseUnlessOk(const gpu::Status& status) {
  if (!status.ok()) throw nb::value_error(status.call);
}

gpu::GroupShape ShapeOf(const Sizes& sizes) {
  if (sizes.size() > gpu::kMaxGroupRank) throw nb::value_error("eight group dimensions at most");
  gpu::GroupShape shape;
  for (int64_t size : sizes) shape.size[shape.rank++] = size;
  return shape;
}

// Of an operand whose matrices have so many elements.
gpu::GroupStrides StridesOf(const Sizes& sizes, int64_t matrix) {
  return gpu::StridesOf(static_cast<int>(sizes.size()), Dims(sizes.data(), sizes.size()), matrix);
}

// {"kernel": name}, and for the portable kernels what `describe` adds of their launch.
template <typename Decision, typename Describe>
nb::dict ToDict(const Decision& decision, const Describe& describe) {
  constexpr const char* kNames[] = {"portable", "halo", "halo", "hopper", "hopper", "halo", "hopper"};
  nb::dict found;
  found["kernel"] = kNames[decision.index()];
  if (decision.index() == 0) describe(std::get<0>(decision), found);
  return found;
}

nb::dict ChooseTapGemm(const DeviceFigures& device, const Wanted& given, const std::string& taps, bool transposed,
                       const std::array<std::string, 3>& types, const Sizes& groups,
                       const std::array<Sizes, 6>& operand_groups, int64_t batch, int64_t nodes, int64_t source_rows,
                       int32_t depth, int32_t columns, int32_t slots, int32_t neighbours, int64_t source_taps,
                       int64_t workspace_elements, const Window& window) {
  gpu::TapGemm gemm{};
  gemm.source = gemm.weight = gemm.out = SomeAddress();
  gemm.source_type = ElementOf(types[0]);
  gemm.compute_type = ElementOf(types[1]);
  gemm.out_type = ElementOf(types[2]);
  gemm.transposed = gemm.window.transposed = transposed;
  gemm.kind = taps == "window"    ? gpu::Taps::kWindow
              : taps == "columns" ? gpu::Taps::kColumns
              : taps == "rows"    ? gpu::Taps::kRows
                                  : gpu::Taps::kSources;
  gemm.batch = batch;
  gemm.nodes = nodes;
  gemm.source_rows = source_rows;
  gemm.depth = depth;
  gemm.columns = columns;
  gemm.slots = slots;
  gemm.table.columns = neighbours;
  gemm.table.taps = source_taps;
  const int64_t taps_of_group = gemm.kind == gpu::Taps::kSources ? source_taps : nodes * neighbours;
  gemm.groups = ShapeOf(groups);
  gemm.source_groups = StridesOf(operand_groups[0], batch * source_rows * depth);
  gemm.weight_groups = StridesOf(operand_groups[1], int64_t{slots} * depth * columns);
  gemm.bias_groups = StridesOf(operand_groups[2], columns);
  gemm.table.source_groups = StridesOf(operand_groups[3], taps_of_group);
  gemm.table.slot_groups = StridesOf(operand_groups[4], taps_of_group);
  gemm.table.offset_groups = StridesOf(operand_groups[5], 2 * (nodes + 1));
  gemm.workspace = SomeAddress();
  gemm.workspace_bytes = workspace_elements * 4;
  for (int d = 0; d < 2; ++d) {
    gemm.window.kernel[d] = window[0][d];
    gemm.window.stride[d] = window[1][d];
    gemm.window.padding[d] = window[2][d];
    gemm.window.dilation[d] = window[3][d];
    gemm.window.source_size[d] = window[4][d];
    gemm.window.out_size[d] = window[5][d];
  }
  gpu::TileChoice wanted;
  Fill(given, &wanted);
  gpu::TapDecision decision;
  RaiseUnlessOk(gpu::ChooseTapGemm(gemm, DeviceOf(device), wanted, &decision));
  return ToDict(decision, [](const gpu::TapLaunch& launch, nb::dict& found) {
    found["rows"] = launch.rows;
    found["columns"] = launch.columns;
    found["vector"] = launch.vector_a || launch.vector_b;
    found["asynchronous"] = launch.staging != gpu::Staging::kAny;
  });
}

gpu::DenseTaps Window2d(const Window& window) {
  gpu::DenseTaps taps{};
  taps.kernel_width = window[0][1];
  for (int d = 0; d < 2; ++d) {
    taps.stride[d] = window[1][d];
    taps.padding[d] = window[2][d];
    taps.dilation[d] = window[3][d];
    taps.in_size[d] = window[4][d];
    taps.out_size[d] = window[5][d];
  }
  return taps;
}

// Which kernel a weight gradient runs on, its tile, and into how many sums its depth is cut: what depends on their
// room.
using Cut = std::array<int64_t, 4>;

Cut CutOf(const gpu::DweightLaunch& launch) {
  return {0, launch.tile.rows, launch.tile.columns, launch.grid.slices};
}
Cut CutOf(const gpu::HaloDweightPlan& plan) { return {1, plan.row_tiles, plan.column_tiles, plan.slices}; }
Cut CutOf(const gpu::StemDweightPlan& plan) { return {2, plan.row_tiles, plan.column_tiles, plan.slices}; }
Cut CutOf(const hopper::DweightPlan& plan) { return {3, plan.tile, 0, plan.blocks}; }
Cut CutOf(const hopper::HaloDweightPlan& plan) { return {4, 0, plan.column_tiles, plan.slices}; }
Cut CutOf(const gpu::DweightDecision& decision) {
  return std::visit([](const auto& chosen) { return CutOf(chosen); }, decision);
}

// Slices of partial sums, from `least` to `most`, whose room `choose_with` decides with as it does with that of `most`.
// Found by halves: the fewest, unless some room between decides otherwise and less room as `most` does.
template <typename ChooseWith>
int64_t FewestSlices(const gpu::DweightDecision& decision, int64_t least, int64_t most, const ChooseWith& choose_with) {
  int64_t too_few = least - 1;
  while (most - too_few > 1) {
    const int64_t middle = too_few + (most - too_few) / 2;
    gpu::DweightDecision other;
    const bool same = choose_with(middle, &other).ok() && CutOf(other) == CutOf(decision);
    (same ? most : too_few) = middle;
  }
  return most;
}

nb::dict ChooseDweight(const DeviceFigures& device, const Wanted& given, int slices, const std::string& taps,
                       const std::array<std::string, 3>& types, const Sizes& groups, const Sizes& members,
                       const std::array<Sizes, 4>& operand_groups, int64_t batch, int32_t slots, int32_t channels,
                       int32_t columns, int32_t sources, int32_t outputs, int32_t neighbours, bool has_bias,
                       bool zero_empty_rows, int64_t partial_slices, const Window& window) {
  gpu::Dweight dweight{};
  dweight.x = dweight.g = dweight.dw = SomeAddress();
  dweight.db = has_bias ? SomeAddress() : nullptr;
  dweight.partials = static_cast<float*>(SomeAddress());
  dweight.x_type = ElementOf(types[0]);
  dweight.g_type = ElementOf(types[1]);
  dweight.dw_type = ElementOf(types[2]);
  dweight.db_type = Element::kF32;
  dweight.batch = batch;
  dweight.slots = slots;
  dweight.channels = channels;
  dweight.columns = columns;
  dweight.shapes.groups = ShapeOf(groups);
  dweight.shapes.members = ShapeOf(members);
  gpu::DweightChoice wanted;
  Fill(given, &wanted);
  wanted.slices = slices;

  int64_t x_rows = sources, g_rows = outputs;
  if (taps == "window") {
    x_rows = int64_t{window[4][0]} * window[4][1];
    g_rows = int64_t{window[5][0]} * window[5][1];
  }
  dweight.x_groups = StridesOf(operand_groups[0], batch * x_rows * channels);
  dweight.g_groups = StridesOf(operand_groups[1], batch * g_rows * columns);
  const gpu::NeighborTable table{nullptr, nullptr, sources, outputs, neighbours, slots, zero_empty_rows};
  const int64_t slice = (int64_t{slots} * channels + 1) * columns;
  const auto choose_with = [&](int64_t room, gpu::DweightDecision* decision) {
    dweight.partial_elements = room * slice;
    if (taps == "window") return gpu::ChooseDweight(dweight, Window2d(window), DeviceOf(device), wanted, decision);
    if (taps == "columns") {
      const gpu::ColumnTaps by_column{table, StridesOf(operand_groups[2], int64_t{outputs} * neighbours)};
      return gpu::ChooseDweight(dweight, by_column, DeviceOf(device), wanted, decision);
    }
    const int64_t matrix = int64_t{outputs} * neighbours;
    gpu::SlotTaps by_slot{};
    by_slot.table = table;
    by_slot.index_groups = by_slot.row_groups = by_slot.source_groups = StridesOf(operand_groups[2], matrix);
    by_slot.slot_groups = StridesOf(operand_groups[3], matrix);
    by_slot.offset_groups = StridesOf(operand_groups[2], 2 * (int64_t{slots} + 1));
    return gpu::ChooseDweight(dweight, by_slot, DeviceOf(device), wanted, decision);
  };
  gpu::DweightDecision decision;
  RaiseUnlessOk(choose_with(partial_slices, &decision));
  nb::dict found = ToDict(decision, [](const gpu::DweightLaunch& launch, nb::dict& found) {
    found["rows"] = launch.tile.rows;
    found["columns"] = launch.tile.columns;
    const bool vector = launch.staging != gpu::DweightStaging::kScalar;
    found["vector"] = vector;
    found["asynchronous"] = vector && launch.staging != gpu::DweightStaging::kRegisters;
    found["slices"] = launch.grid.slices;
  });
  found["partial_slices"] = FewestSlices(decision, 2 * ShapeOf(groups).count(), partial_slices, choose_with);
  return found;
}

}  // namespace

void DefineRules(nb::module_& m) {
  using nb::literals::operator""_a;
  m.def("choose_tap_gemm", &ChooseTapGemm, nb::kw_only(), "device"_a, "wanted"_a, "taps"_a, "transposed"_a, "types"_a,
        "groups"_a, "operand_groups"_a, "batch"_a, "nodes"_a, "source_rows"_a, "depth"_a, "columns"_a, "slots"_a,
        "neighbours"_a, "source_taps"_a, "workspace_elements"_a, "window"_a,
        "The kernel of a forward or dinput, as RunTapGemm chooses it.");
  m.def("choose_dweight", &ChooseDweight, nb::kw_only(), "device"_a, "wanted"_a, "slices"_a, "taps"_a, "types"_a,
        "groups"_a, "members"_a, "operand_groups"_a, "batch"_a, "slots"_a, "channels"_a, "columns"_a, "sources"_a,
        "outputs"_a, "neighbours"_a, "has_bias"_a, "zero_empty_rows"_a, "partial_slices"_a, "window"_a,
        "The kernel of a weight gradient, as RunDweight chooses it.");
}

}  // namespace knnconv
