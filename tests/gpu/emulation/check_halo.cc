// Runs the kernels of few channels (halo.h, halo_dweight.h, stem.h, stem_dinput.h, stem_dweight.h) and compares with sums in
// double, tap by tap.
#include <algorithm>
#include <tuple>

#include "check.h"
#include "gpu/halo.h"
#include "gpu/halo_dweight.h"
#include "gpu/stem.h"
#include "gpu/stem_dinput.h"
#include "gpu/stem_dweight.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

struct Tap {
  int64_t row, source;  // of the forward operation
  int slot;
};

struct Problem {
  int64_t batch, rows, sources;
  int slots, channels, columns;
  std::vector<Tap> taps;
};

struct Operands {
  Array<float> x, weight, g, bias;
};

struct Expected {
  std::vector<double> y, dx, dw, db;
};

Expected Compute(const Problem& p, const Operands& with) {
  Expected all;
  all.y.resize(p.batch * p.rows * p.columns);
  all.dx.resize(p.batch * p.sources * p.channels);
  all.dw.resize(int64_t{p.slots} * p.channels * p.columns);
  all.db.resize(p.columns);
  for (size_t i = 0; i < all.y.size(); ++i) {
    all.y[i] = with.bias[i % p.columns];
    all.db[i % p.columns] += with.g[i];
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    for (const Tap& tap : p.taps) {
      for (int c = 0; c < p.channels; ++c) {
        for (int o = 0; o < p.columns; ++o) {
          const int64_t x = (b * p.sources + tap.source) * p.channels + c, y = (b * p.rows + tap.row) * p.columns + o;
          const int64_t w = (int64_t{tap.slot} * p.channels + c) * p.columns + o;
          all.y[y] += double{with.x[x]} * with.weight[w];
          all.dx[x] += double{with.g[y]} * with.weight[w];
          all.dw[w] += double{with.x[x]} * with.g[y];
        }
      }
    }
  }
  return all;
}

// The gemm's operands are all but its taps.
TapGemm Gemm(const Problem& p, bool transposed) {
  TapGemm gemm{};
  gemm.transposed = transposed;
  gemm.batch = p.batch;
  gemm.nodes = transposed ? p.sources : p.rows;
  gemm.source_rows = transposed ? p.rows : p.sources;
  gemm.depth = transposed ? p.columns : p.channels;
  gemm.columns = transposed ? p.channels : p.columns;
  gemm.slots = p.slots;
  gemm.out_type = Element::kF32;
  return gemm;
}

Dweight Gradient(const Problem& p) {
  Dweight dweight{};
  dweight.batch = p.batch;
  dweight.slots = p.slots;
  dweight.channels = p.channels;
  dweight.columns = p.columns;
  dweight.dw_type = dweight.db_type = Element::kF32;
  return dweight;
}

// How operands come: float32 x, and which start an element behind a multiple of 16 bytes.
struct Form {
  bool float_x = false, odd_operands = false, odd_results = false;
};
constexpr Form kForms[] = {{}, {true}, {false, true}, {false, false, true}};

// `forward` and `gradient` run (site, device, operands) and say whether the device can; `dinput` likewise, where there
// is one.
template <typename T, typename Forward, typename Dinput, typename Gradients>
void Check(const std::string& name, const Problem& p, const Forward& forward, const Dinput& dinput,
           const Gradients& gradients) {
  const auto x = Values<T>(p.batch * p.sources * p.channels), g = Values<T>(p.batch * p.rows * p.columns);
  const auto weight = Values<T>(int64_t{p.slots} * p.channels * p.columns);
  const auto odd_x = Further(x), odd_g = Further(g), odd_weight = Further(weight);
  const Operands wide{ToFloats(x), ToFloats(weight), ToFloats(g), Values<float>(p.columns)};
  const Expected expected = Compute(p, wide);
  for (const Setting& setting : kSettings) {
    Use(setting);
    const LaunchSite site{nullptr, setting.device, false};
    Device device;
    RequireOk(name, GetDevice(setting.device, &device));
    for (const Form& form : kForms) {
      if ((form.odd_operands || form.odd_results) && &setting > kSettings) continue;
      const int skipped = form.odd_results;
      const T* const from = form.odd_operands ? odd_x.data() + 1 : x.data();
      const T* const cotangent = form.odd_operands ? odd_g.data() + 1 : g.data();
      const T* const matrices = form.odd_operands ? odd_weight.data() + 1 : weight.data();
      const void* const source = form.float_x ? static_cast<const void*>(wide.x.data()) : from;
      const Element x_type = form.float_x ? Element::kF32 : ElementOf<T>::value;
      TapGemm gemm = Gemm(p, false);
      auto y = Unwritten(expected.y.size() + skipped);
      gemm.source = source;
      gemm.source_type = x_type;
      gemm.compute_type = ElementOf<T>::value;
      gemm.weight = matrices;
      gemm.bias = wide.bias.data();
      gemm.out = y.data() + skipped;
      if (forward(site, device, gemm)) Compare(name + ", forward", Behind(y, skipped), expected.y);

      // Room for one slice, and for several.
      for (size_t slices : {1, 7}) {
        Dweight dweight = Gradient(p);
        auto dw = Unwritten(expected.dw.size() + skipped), db = Unwritten(expected.db.size() + skipped);
        auto partials = Unwritten(slices * (expected.dw.size() + expected.db.size()) + skipped);
        dweight.x = source;
        dweight.x_type = x_type;
        dweight.g = cotangent;
        dweight.g_type = ElementOf<T>::value;
        dweight.dw = dw.data() + skipped;
        dweight.db = db.data() + skipped;
        dweight.partials = partials.data() + skipped;
        dweight.partial_elements = static_cast<int64_t>(partials.size()) - skipped;
        if (!gradients(site, device, dweight)) continue;
        Compare(name + ", dweight", Behind(dw, skipped), expected.dw);
        Compare(name + ", bias", Behind(db, skipped), expected.db);
      }
      if (form.float_x) continue;
      gemm = Gemm(p, true);
      auto dx = Unwritten(expected.dx.size() + skipped);
      gemm.source = cotangent;
      gemm.source_type = gemm.compute_type = ElementOf<T>::value;
      gemm.weight = matrices;
      gemm.out = dx.data() + skipped;
      if (dinput(site, device, gemm)) Compare(name + ", dinput", Behind(dx, skipped), expected.dx);
    }
  }
}

template <typename T>
void CheckWindow(int64_t batch, const Window& window, int channels, int columns) {
  const auto& [in, kernel, stride, padding, dilation, out] = window;
  Problem p{batch, int64_t{out[0]} * out[1], int64_t{in[0]} * in[1], kernel[0] * kernel[1], channels, columns, {}};
  for (int i = 0; i < out[0]; ++i) {
    for (int j = 0; j < out[1]; ++j) {
      for (int f = 0; f < p.slots; ++f) {
        const int h = i * stride[0] + f / kernel[1] * dilation[0] - padding[0];
        const int w = j * stride[1] + f % kernel[1] * dilation[1] - padding[1];
        if (h < 0 || h >= in[0] || w < 0 || w >= in[1]) continue;
        p.taps.push_back({int64_t{i} * out[1] + j, int64_t{h} * in[1] + w, f});
      }
    }
  }
  const std::string name = "window " + std::to_string(in[0]) + " x " + std::to_string(in[1]) + ", " +
                           std::to_string(channels) + " -> " + std::to_string(columns);
  const auto run = [&](const LaunchSite& site, const Device& device, TapGemm& gemm) {
    gemm.kind = Taps::kWindow;
    gemm.window.transposed = gemm.transposed;
    for (int d = 0; d < 2; ++d) {
      gemm.window.kernel[d] = window.kernel[d];
      gemm.window.stride[d] = window.stride[d];
      gemm.window.padding[d] = window.padding[d];
      gemm.window.dilation[d] = window.dilation[d];
      gemm.window.source_size[d] = gemm.transposed ? window.out[d] : window.size[d];
      gemm.window.out_size[d] = gemm.transposed ? window.size[d] : window.out[d];
    }
    HaloPlan plan;
    if (!ChooseHalo(gemm, device, /*forced=*/true, &plan)) return false;
    RequireOk(name, RunHalo(site, gemm, device, plan));
    return true;
  };
  Check<T>(name, p, run, run, [&](const LaunchSite& site, const Device& device, const Dweight& dweight) {
    DenseTaps taps{};
    taps.kernel_width = window.kernel[1];
    for (int d = 0; d < 2; ++d) {
      taps.in_size[d] = window.size[d];
      taps.out_size[d] = window.out[d];
      taps.stride[d] = window.stride[d];
      taps.padding[d] = window.padding[d];
      taps.dilation[d] = window.dilation[d];
    }
    HaloDweightPlan plan;
    if (!ChooseHalo(dweight, taps, device, /*forced=*/true, &plan)) return false;
    RequireOk(name, RunHalo(site, dweight, taps, device, plan));
    return true;
  });
}

// The taps by (source, slot, row), with room for a few more.
struct SourceOrder {
  Array<int32_t> offsets, rows, slots;

  SourceOrder(const Problem& p, int64_t room) {
    std::vector<Tap> taps = p.taps;
    std::sort(taps.begin(), taps.end(), [](const Tap& a, const Tap& b) {
      return std::tie(a.source, a.slot, a.row) < std::tie(b.source, b.slot, b.row);
    });
    for (int64_t n = 0, next = 0; n <= p.sources; ++n) {
      offsets.insert(offsets.end(), {static_cast<int32_t>(next), 0});
      while (next < static_cast<int64_t>(taps.size()) && taps[next].source == n) ++next;
    }
    for (const Tap& tap : taps) {
      rows.push_back(static_cast<int32_t>(tap.row));
      slots.push_back(tap.slot);
    }
    rows.resize(room, INT32_MAX);
    slots.resize(rows.size(), INT32_MAX);
  }
};

// With `slots`, every tap has one of so many drawn for it: dinput alone then.
template <typename T>
void CheckTable(int64_t batch, int rows, int sources, int channels, int columns, int neighbours, int slots = 0) {
  Problem p{batch, rows, sources, slots > 0 ? slots : neighbours, channels, columns, {}};
  Array<int32_t> indices;
  for (int m = 0; m < rows; ++m) {
    for (int k = 0; k < neighbours; ++k) {
      const int32_t junk[] = {-1, sources, INT32_MAX, INT32_MIN};
      const bool hole = m == 1 || Pick(0, 6) == 0;
      indices.push_back(hole ? junk[Pick(0, 3)] : Pick(0, 1) == 0 ? 0 : Pick(0, sources - 1));  // 0 may be a hub
      if (!hole) p.taps.push_back({m, indices.back(), slots > 0 ? Pick(0, slots - 1) : k});
    }
  }
  const std::string name = "table " + std::to_string(channels) + " -> " + std::to_string(columns);
  const SourceOrder order(p, static_cast<int64_t>(rows) * neighbours);
  const auto dinput = [&](const LaunchSite& site, const Device& device, TapGemm& gemm) {
    gemm.kind = Taps::kSources;
    gemm.table.sources = order.rows.data();
    gemm.table.slots = order.slots.data();
    gemm.table.offsets = order.offsets.data();
    gemm.table.taps = static_cast<int64_t>(order.rows.size());
    auto room = Unwritten(60000);
    gemm.workspace = room.data();
    gemm.workspace_bytes = static_cast<int64_t>(room.size()) * 4;
    StemDinputPlan plan;
    if (!ChooseStem(gemm, device, /*forced=*/true, &plan)) return false;
    RequireOk(name, RunStemDinput(site, gemm, device, plan));
    return true;
  };
  const auto forward = [&](const LaunchSite& site, const Device& device, TapGemm& gemm) {
    if (slots > 0) return false;
    gemm.kind = Taps::kColumns;
    gemm.table.sources = indices.data();
    gemm.table.columns = neighbours;
    StemPlan plan;
    if (!ChooseStem(gemm, device, /*forced=*/true, &plan)) return false;
    RequireOk(name, RunStem(site, gemm, device, plan));
    return true;
  };
  Check<T>(name, p, forward, dinput, [&](const LaunchSite& site, const Device& device, const Dweight& dweight) {
    if (slots > 0) return false;
    const ColumnTaps taps{{indices.data(), nullptr, sources, rows, neighbours, neighbours, false}, {}};
    StemDweightPlan plan;
    if (!ChooseStem(dweight, taps, device, /*forced=*/true, &plan)) return false;
    RequireOk(name, RunStem(site, dweight, taps, device, plan));
    return true;
  });
}

template <typename T>
void CheckRandom() {
  CheckWindow<T>(Pick(1, 3), PickWindow(), PickChannels(), PickChannels());
  CheckTable<T>(Pick(1, 5), Pick(1, 150), Pick(1, 100), Pick(1, 4), 8 * Pick(1, 16), Pick(1, 50));
  CheckTable<T>(Pick(1, 3), Pick(1, 150), Pick(1, 200), Pick(1, 4), 8 * Pick(1, 12), Pick(1, 30), Pick(1, 40));
}

}  // namespace

int main(int argc, char** argv) {
  CheckWindow<BFloat>(2, {{9, 21}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {9, 21}}, 16, 24);
  CheckWindow<Half>(2, {{19, 13}, {3, 2}, {2, 3}, {1, 0}, {2, 1}, {8, 4}}, 8, 33);
  CheckWindow<BFloat>(2, {{20, 18}, {7, 7}, {2, 2}, {3, 2}, {1, 1}, {10, 9}}, 3, 64);
  CheckWindow<Half>(1, {{9, 9}, {2, 2}, {4, 3}, {0, 0}, {1, 1}, {2, 3}}, 12, 5);
  CheckWindow<BFloat>(1, {{40, 37}, {3, 3}, {1, 1}, {0, 0}, {1, 1}, {38, 35}}, 32, 8);
  CheckTable<BFloat>(3, 40, 37, 3, 24, 11);
  CheckTable<Half>(2, 70, 90, 4, 104, 6);
  CheckTable<BFloat>(1, 17, 20, 1, 64, 50);
  CheckTable<Half>(1, 23, 150, 3, 96, 37);
  CheckTable<BFloat>(2, 9, 65, 2, 40, 30);
  CheckTable<Half>(1, 150, 90, 4, 96, 50);  // several stretches of dinput
  CheckTable<BFloat>(1, 12, 30, 4, 8, 190);  // slots for every warp of a block
  CheckTable<BFloat>(1, 20, 2300, 3, 16, 20);  // blocks of sources for three turns of dinput's warps
  CheckTable<BFloat>(2, 50, 70, 3, 24, 21, 13);
  CheckTable<Half>(1, 90, 40, 2, 96, 9, 50);
  CheckTable<BFloat>(1, 30, 100, 4, 40, 30, 1);
  for (int i = 0; i < RandomShapes(argc, argv); ++i) {
    CheckRandom<Half>();
    CheckRandom<BFloat>();
  }
  return Result();
}
