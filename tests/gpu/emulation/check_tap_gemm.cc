// Runs the kernels of RunTapGemm and RunHubSums and compares with sums in double, tap by tap.
#include <algorithm>

#include "check.h"
#include "gpu/hub_sums.h"
#include "gpu/tap_gemm.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

struct Tap {
  int64_t node, source;
  int slot;
};

// The result by definition; a node without taps may be empty.
std::vector<double> Expected(const TapGemm& gemm, const std::vector<Tap>& taps, const Array<float>& source,
                             const Array<float>& weight, const Array<float>& bias) {
  std::vector<double> out(gemm.batch * gemm.nodes * gemm.columns);
  std::vector<bool> live(gemm.nodes);
  for (const Tap& tap : taps) {
    live[tap.node] = true;
    for (int64_t b = 0; b < gemm.batch; ++b) {
      for (int p = 0; p < gemm.columns; ++p) {
        double sum = 0;
        for (int d = 0; d < gemm.depth; ++d) {
          const int64_t at = gemm.transposed ? int64_t{p} * gemm.depth + d : int64_t{d} * gemm.columns + p;
          sum += double{source[(b * gemm.source_rows + tap.source) * gemm.depth + d]} *
                 weight[int64_t{tap.slot} * gemm.depth * gemm.columns + at];
        }
        out[(b * gemm.nodes + tap.node) * gemm.columns + p] += sum;
      }
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const bool empty = gemm.zero_empty_rows && !live[i / gemm.columns % gemm.nodes];
    out[i] = empty ? 0 : out[i] + (bias.empty() ? 0 : bias[i % gemm.columns]);
  }
  return out;
}

// How operands come: a float32 source, and which start an element behind a multiple of 16 bytes.
struct Form {
  bool float_source = false, odd_source = false, odd_weight = false, odd_out = false;
};
constexpr Form kForms[] = {{}, {true}, {false, true}, {false, false, true}, {false, false, false, true},
                           {false, true, true, true}};

// Computes `gemm` over `taps` with every tile and compares.
template <typename T>
void Check(const std::string& name, TapGemm gemm, const std::vector<Tap>& taps, bool with_bias, int64_t list_room) {
  const auto source = Values<T>(gemm.batch * gemm.source_rows * gemm.depth);
  const auto weight = Values<T>(size_t(gemm.slots) * gemm.depth * gemm.columns);
  const auto odd_source = Further(source), odd_weight = Further(weight);
  const auto wide = ToFloats(source), bias = Values<float>(with_bias ? gemm.columns : 0);
  gemm.bias = with_bias ? bias.data() : nullptr;
  gemm.compute_type = ElementOf<T>::value;
  gemm.out_type = Element::kF32;
  const auto expected = Expected(gemm, taps, wide, ToFloats(weight), bias);

  const TileChoice tiles[] = {{}, {16, 32, -1}, {64, 64, -1}, {128, 128, -1}, {64, 32, 0}};
  for (const TileChoice& tile : tiles) {
    for (const Form& form : kForms) {
      if (&form > kForms && tile.rows > 0) break;
      if (form.float_source && gemm.transposed) continue;
      const T* const from = form.odd_source ? odd_source.data() + 1 : source.data();
      gemm.source = form.float_source ? static_cast<const void*>(wide.data()) : from;
      gemm.source_type = form.float_source ? Element::kF32 : gemm.compute_type;
      gemm.weight = form.odd_weight ? odd_weight.data() + 1 : weight.data();
      const std::string what = name + ", tile " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns) +
                               ", staging " + std::to_string(tile.vector) + (form.float_source ? ", float32 source" : "") +
                               (form.odd_source ? ", odd source" : "") + (form.odd_weight ? ", odd weight" : "");
      const bool odd = form.odd_source || form.odd_weight || form.odd_out;
      for (const Setting& setting : kSettings) {
        if (odd && &setting > kSettings) continue;
        auto out = Unwritten(expected.size() + form.odd_out), partials = Unwritten(HubPartials(gemm, list_room));
        gemm.out = out.data() + form.odd_out;
        Use(setting);
        const LaunchSite site{nullptr, setting.device, false};
        const Status status = RunTapGemm(site, gemm, tile);
        if (LacksRoom(setting, tile, status)) continue;
        RequireOk(what, status);
        if (gemm.kind == Taps::kSources) RequireOk(what, RunHubSums(site, gemm, list_room, partials.data()));
        Compare(what, Behind(out, form.odd_out), expected);
      }
    }
  }
}

TapGemm Problem(int64_t batch, int64_t nodes, int64_t source_rows, int depth, int columns, int slots) {
  TapGemm gemm{};
  gemm.batch = batch;
  gemm.nodes = nodes;
  gemm.source_rows = source_rows;
  gemm.depth = depth;
  gemm.columns = columns;
  gemm.slots = slots;
  return gemm;
}

template <typename T>
void CheckTable(int64_t batch, int nodes, int source_rows, int depth, int columns, int taps, int slots, bool own_slots) {
  Array<int32_t> indices(nodes * taps), slot(nodes * taps);
  std::vector<Tap> list;
  for (int m = 0; m < nodes; ++m) {
    int at = 0;
    for (int k = 0; k < taps; ++k) {
      const int junk[] = {-1, source_rows, INT32_MAX, INT32_MIN};
      indices[m * taps + k] = m == 1 || Pick(0, 6) == 0 ? junk[Pick(0, 3)] : Pick(0, source_rows - 1);
      at = own_slots ? std::min(slots, at + Pick(0, 1) * Pick(0, 3)) : k;  // ascending; past the last is a hole
      slot[m * taps + k] = own_slots && k == 0 ? -Pick(0, 1) : at;
      const int index = indices[m * taps + k], s = slot[m * taps + k];
      if (index >= 0 && index < source_rows && s >= 0 && s < slots) list.push_back({m, index, s});
    }
  }
  TapGemm gemm = Problem(batch, nodes, source_rows, depth, columns, slots);
  gemm.kind = own_slots ? Taps::kRows : Taps::kColumns;
  gemm.table.columns = taps;
  gemm.table.sources = indices.data();
  gemm.table.slots = own_slots ? slot.data() : nullptr;
  for (bool zero : {false, true}) {
    gemm.zero_empty_rows = zero;
    Check<T>(own_slots ? "rows" : "columns", gemm, list, true, 0);
  }
}

// `counts[n]` taps of node n, slots ascending in each list.
template <typename T>
void CheckSources(int64_t batch, const std::vector<int>& counts, int source_rows, int depth, int columns, int slots) {
  Array<int32_t> offsets{0, 0}, rows, slot;
  std::vector<Tap> list;
  for (size_t n = 0; n < counts.size(); ++n) {
    std::vector<int> own(counts[n]);
    for (int& s : own) s = Pick(0, slots - 1);
    std::sort(own.begin(), own.end());
    for (int s : own) {
      rows.push_back(Pick(0, source_rows - 1));
      slot.push_back(s);
      list.push_back({int64_t(n), rows.back(), s});
    }
    offsets.push_back(static_cast<int32_t>(rows.size()));
    offsets.push_back(0);
  }
  rows.resize(rows.size() + 5, -1);  // holes of the table: room behind the last list
  slot.resize(rows.size(), -1);
  TapGemm gemm = Problem(batch, counts.size(), source_rows, depth, columns, slots);
  gemm.kind = Taps::kSources;
  gemm.transposed = true;
  gemm.table.sources = rows.data();
  gemm.table.slots = slot.data();
  gemm.table.offsets = offsets.data();
  Check<T>("sources", gemm, list, false, rows.size());
}

template <typename T>
void CheckWindow(int64_t batch, const Window& window, int depth, int columns) {
  const auto& [size, kernel, stride, padding, dilation, out] = window;
  for (bool transposed : {false, true}) {
    std::vector<Tap> list;
    for (int i = 0; i < out[0]; ++i) {
      for (int j = 0; j < out[1]; ++j) {
        for (int f = 0; f < kernel[0] * kernel[1]; ++f) {
          const int h = i * stride[0] + f / kernel[1] * dilation[0] - padding[0];
          const int w = j * stride[1] + f % kernel[1] * dilation[1] - padding[1];
          if (h < 0 || h >= size[0] || w < 0 || w >= size[1]) continue;
          const int64_t image = int64_t{h} * size[1] + w, result = int64_t{i} * out[1] + j;
          list.push_back(transposed ? Tap{image, result, f} : Tap{result, image, f});
        }
      }
    }
    const int64_t images = int64_t{size[0]} * size[1], results = int64_t{out[0]} * out[1];
    TapGemm gemm = Problem(batch, transposed ? images : results, transposed ? results : images, depth, columns,
                           kernel[0] * kernel[1]);
    gemm.kind = Taps::kWindow;
    gemm.transposed = gemm.window.transposed = transposed;
    for (int d = 0; d < 2; ++d) {
      gemm.window.kernel[d] = kernel[d];
      gemm.window.stride[d] = stride[d];
      gemm.window.padding[d] = padding[d];
      gemm.window.dilation[d] = dilation[d];
      gemm.window.source_size[d] = transposed ? out[d] : size[d];
      gemm.window.out_size[d] = transposed ? size[d] : out[d];
    }
    Check<T>(transposed ? "window dinput" : "window forward", gemm, list, !transposed, 0);
  }
}

template <typename T>
void CheckRandom() {
  CheckWindow<T>(Pick(1, 3), PickWindow(), PickChannels(), PickChannels());
  const int taps = Pick(1, 40), slots = Pick(1, 80), sources = Pick(1, 60);
  CheckTable<T>(Pick(1, 40), Pick(1, 60), sources, PickChannels(), PickChannels(), taps, taps, false);
  CheckTable<T>(Pick(1, 40), Pick(1, 60), sources, PickChannels(), PickChannels(), taps, slots, true);
  std::vector<int> counts(Pick(1, 60));
  for (int& count : counts) count = Pick(0, 20) == 0 ? Pick(200, 600) : Pick(0, 30);
  CheckSources<T>(Pick(0, 1) == 0 ? 1 : Pick(1, 20), counts, sources, PickChannels(), PickChannels(), slots);
}

}  // namespace

int main(int argc, char** argv) {
  CheckTable<Half>(3, 21, 17, 16, 40, 5, 5, false);
  CheckTable<BFloat>(1, 70, 30, 24, 33, 40, 40, false);
  CheckTable<BFloat>(2, 35, 17, 8, 16, 9, 70, true);
  CheckTable<Half>(33, 5, 17, 3, 7, 9, 4, true);
  CheckSources<Half>(2, {3, 0, 7, 1, 12, 300, 4, 256, 257, 2, 0, 9}, 40, 16, 24, 5);
  CheckSources<BFloat>(1, {3, 0, 7, 1, 12, 600, 4, 256, 257, 2, 0, 9, 700, 40, 8, 8, 1, 0, 0}, 40, 72, 40, 37);
  CheckSources<BFloat>(40, {3, 0, 7, 60, 300}, 40, 8, 8, 5);
  CheckSources<Half>(5, {3, 0, 7, 60, 300}, 40, 5, 3, 70);
  CheckSources<Half>(3, {3, 4500, 7, 60, 300}, 40, 8, 8, 5);
  CheckSources<Half>(1, {2, 300}, 9, 520, 264, 3);  // more of both than a block's threads take at a time
  std::vector<int> many(150);
  for (int& count : many) count = Pick(0, 9);
  CheckSources<BFloat>(1, many, 60, 64, 64, 27);
  CheckWindow<Half>(2, {{9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {9, 7}}, 16, 24);
  CheckWindow<BFloat>(2, {{11, 13}, {3, 2}, {2, 3}, {1, 0}, {2, 1}, {5, 5}}, 8, 8);
  CheckWindow<Half>(1, {{9, 9}, {2, 2}, {4, 3}, {0, 0}, {1, 1}, {2, 3}}, 3, 5);
  // Steps and reaches whose products have more than 32 bits.
  CheckWindow<Half>(1, {{3, 4}, {3, 1}, {1 << 20, 70000}, {70000, 0}, {70001, 1 << 20}, {1, 1}}, 8, 8);
  CheckWindow<BFloat>(1, {{10, 12}, {6, 6}, {1, 1}, {5, 5}, {1, 1}, {15, 17}}, 40, 16);
  for (int i = 0; i < RandomShapes(argc, argv); ++i) {
    CheckRandom<Half>();
    CheckRandom<BFloat>();
  }
  return Result();
}
