// Runs the kernels of RunDweight and compares with sums in double, tap by tap.
#include "check.h"
#include "gpu/dweight.h"

using namespace knnconv::gpu;
using namespace knnconv::gpu::check;

namespace {

// Of one batch entry: row `row` of g and row `source` of x meet in slot `slot`.
struct Tap {
  int64_t source, row;
  int slot;
};

struct Shape {
  int64_t batch, sources, rows;  // of a batch entry
  int slots, channels, columns;
  int members = 1;  // operand groups, which share the taps and are summed
};

// How operands come: float32 x, and which start an element behind a multiple of 16 bytes.
struct Form {
  bool float_x = false, odd_x = false, odd_g = false, odd_results = false;
};
constexpr Form kForms[] = {{}, {true}, {false, true}, {false, false, true}, {false, false, false, true},
                           {false, true, true, true}};

// Computes dw and db with every tile and staging, and compares. `run` calls RunDweight. db sums the rows of `counted`.
template <typename T, typename Run>
void Check(const std::string& name, const Shape& shape, const std::vector<Tap>& taps, const std::vector<bool>& counted,
           const Run& run) {
  const size_t x_matrix = shape.batch * shape.sources * shape.channels;
  const size_t g_matrix = shape.batch * shape.rows * shape.columns;
  const auto x = Values<T>(shape.members * x_matrix), g = Values<T>(shape.members * g_matrix);
  const auto odd_x = Further(x), odd_g = Further(g);
  const auto wide = ToFloats(x), wide_g = ToFloats(g);
  const size_t weight = size_t(shape.slots) * shape.channels * shape.columns;
  std::vector<double> dw(weight), db(shape.columns);
  for (int64_t entry = 0; entry < shape.members * shape.batch; ++entry) {
    for (const Tap& tap : taps) {
      const float* from = &wide[(entry * shape.sources + tap.source) * shape.channels];
      const float* row = &wide_g[(entry * shape.rows + tap.row) * shape.columns];
      for (int c = 0; c < shape.channels; ++c) {
        for (int o = 0; o < shape.columns; ++o) {
          dw[(int64_t{tap.slot} * shape.channels + c) * shape.columns + o] += double{from[c]} * row[o];
        }
      }
    }
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int o = 0; o < shape.columns && counted[row]; ++o) db[o] += wide_g[(entry * shape.rows + row) * shape.columns + o];
    }
  }

  Dweight dweight{};
  dweight.g_type = ElementOf<T>::value;
  dweight.dw_type = dweight.db_type = Element::kF32;
  dweight.batch = shape.batch;
  dweight.slots = shape.slots;
  dweight.channels = shape.channels;
  dweight.columns = shape.columns;
  dweight.shapes.groups.rank = dweight.shapes.members.rank = 1;
  dweight.shapes.groups.size[0] = 1;
  dweight.shapes.members.size[0] = shape.members;
  dweight.x_groups.step[0] = x_matrix;
  dweight.g_groups.step[0] = g_matrix;

  const DweightChoice choices[] = {{},           {32, 32, -1},  {32, 128, -1}, {64, 64, -1}, {128, 32, -1},
                                   {64, 128, -1}, {128, 128, -1}, {32, 64, 0},   {128, 64, 0}, {64, 32, 1, false},
                                   {64, 128, 1, false}};
  for (const DweightChoice& choice : choices) {
    for (const Form& form : kForms) {
      const bool odd = form.odd_x || form.odd_g || form.odd_results;
      if (odd && choice.rows > 0) continue;
      const bool scalar = form.float_x || shape.channels % 8 != 0 || shape.columns % 8 != 0;
      if (scalar && choice.rows == 64) continue;  // does not ship
      dweight.x = form.float_x ? static_cast<const void*>(wide.data()) : form.odd_x ? odd_x.data() + 1 : x.data();
      dweight.x_type = form.float_x ? Element::kF32 : dweight.g_type;
      dweight.g = form.odd_g ? odd_g.data() + 1 : g.data();
      for (bool with_bias : {false, true}) {
        for (const Setting& setting : kSettings) {
          if ((!with_bias && setting.backward) || (odd && &setting > kSettings)) continue;
          // Room for two slices on one device and for several on the other.
          const size_t slices = setting.device == 0 ? 7 : 2;
          const int skipped = form.odd_results;
          auto partials = Unwritten(slices * (weight + shape.columns) + skipped), sums = Unwritten(weight + skipped);
          auto bias_sums = Unwritten(with_bias ? shape.columns + skipped : 0);
          dweight.partials = partials.data() + skipped;
          dweight.partial_elements = static_cast<int64_t>(partials.size()) - skipped;
          dweight.dw = sums.data() + skipped;
          dweight.db = with_bias ? bias_sums.data() + skipped : nullptr;
          Use(setting);
          const std::string what = name + ", tile " + std::to_string(choice.rows) + " x " +
                                   std::to_string(choice.columns) + ", staging " + std::to_string(choice.vector) +
                                   (choice.asynchronous ? "" : ", through registers") +
                                   (form.float_x ? ", float32 x" : "") + (form.odd_x ? ", odd x" : "") +
                                   (form.odd_g ? ", odd g" : "") + (form.odd_results ? ", odd results" : "");
          const Status status = run(LaunchSite{nullptr, setting.device, false}, dweight, choice);
          if (LacksRoom(setting, choice, status)) continue;
          RequireOk(what, status);
          Compare(what, Behind(sums, skipped), dw);
          if (with_bias) Compare(what + ", bias", Behind(bias_sums, skipped), db);
        }
      }
    }
  }
}

template <typename T>
void CheckWindow(const Shape& sizes, const Window& window) {
  const auto& [in, kernel, stride, padding, dilation, out] = window;
  Shape shape = sizes;
  shape.sources = int64_t{in[0]} * in[1];
  shape.rows = int64_t{out[0]} * out[1];
  shape.slots = kernel[0] * kernel[1];
  std::vector<Tap> list;
  for (int i = 0; i < out[0]; ++i) {
    for (int j = 0; j < out[1]; ++j) {
      for (int f = 0; f < shape.slots; ++f) {
        const int h = i * stride[0] + f / kernel[1] * dilation[0] - padding[0];
        const int w = j * stride[1] + f % kernel[1] * dilation[1] - padding[1];
        if (h >= 0 && h < in[0] && w >= 0 && w < in[1]) list.push_back({int64_t{h} * in[1] + w, int64_t{i} * out[1] + j, f});
      }
    }
  }
  DenseTaps taps{};
  taps.kernel_width = kernel[1];
  for (int d = 0; d < 2; ++d) {
    taps.in_size[d] = in[d];
    taps.out_size[d] = out[d];
    taps.stride[d] = stride[d];
    taps.padding[d] = padding[d];
    taps.dilation[d] = dilation[d];
  }
  Check<T>("window", shape, list, std::vector<bool>(shape.rows, true),
           [&](const LaunchSite& site, const Dweight& dweight, const DweightChoice& choice) {
             return RunDweight(site, dweight, taps, choice);
           });
}

// A table with holes of every kind, and row 1 all holes; with slots of its own, or columns as slots.
template <typename T>
void CheckTable(const Shape& shape, int neighbours, bool own_slots, bool zero_empty_rows) {
  Array<int32_t> indices, slots;
  std::vector<Tap> list;
  std::vector<bool> counted(shape.rows, !zero_empty_rows);
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int k = 0; k < neighbours; ++k) {
      const int32_t junk[] = {-1, static_cast<int32_t>(shape.sources), INT32_MAX, INT32_MIN};
      const bool hole = row == 1 || Pick(0, 6) == 0;
      indices.push_back(hole ? junk[Pick(0, 3)] : Pick(0, static_cast<int>(shape.sources) - 1));
      slots.push_back(own_slots ? Pick(-1, shape.slots) : k);
      if (hole || slots.back() < 0 || slots.back() >= shape.slots) continue;
      list.push_back({indices.back(), row, slots.back()});
      counted[row] = true;
    }
  }
  const NeighborTable table{indices.data(), own_slots ? slots.data() : nullptr, static_cast<int32_t>(shape.sources),
                            static_cast<int32_t>(shape.rows), neighbours, shape.slots, zero_empty_rows};
  if (!own_slots) {
    Check<T>("columns", shape, list, counted,
             [&](const LaunchSite& site, const Dweight& dweight, const DweightChoice& choice) {
               return RunDweight(site, dweight, ColumnTaps{table, {}}, choice);
             });
    return;
  }
  Array<int32_t> offsets{0, 0}, rows, sources;
  for (int slot = 0; slot < shape.slots; ++slot) {
    for (const Tap& tap : list) {
      if (tap.slot != slot) continue;
      rows.push_back(static_cast<int32_t>(tap.row));
      sources.push_back(static_cast<int32_t>(tap.source));
    }
    offsets.push_back(static_cast<int32_t>(rows.size()));
    offsets.push_back(0);
  }
  rows.resize(indices.size(), -1);  // holes: room behind the last list
  sources.resize(indices.size(), -1);
  SlotTaps taps{};
  taps.table = table;
  taps.offsets = offsets.data();
  taps.rows = rows.data();
  taps.sources = sources.data();
  Check<T>("slots", shape, list, counted,
           [&](const LaunchSite& site, const Dweight& dweight, const DweightChoice& choice) {
             return RunDweight(site, dweight, taps, choice);
           });
}

Shape Dense(int64_t batch, int channels, int columns, int members = 1) {
  return {batch, 0, 0, 0, channels, columns, members};
}

template <typename T>
void CheckRandom() {
  CheckWindow<T>(Dense(Pick(1, 3), PickChannels(), PickChannels(), Pick(1, 2)), PickWindow());
  const int taps = Pick(1, 40);
  CheckTable<T>({Pick(1, 40), Pick(1, 60), Pick(1, 60), taps, PickChannels(), PickChannels()}, taps, false, Pick(0, 1) == 0);
  CheckTable<T>({Pick(1, 40), Pick(1, 60), Pick(1, 60), Pick(1, 80), PickChannels(), PickChannels(), Pick(1, 2)}, taps,
                true, Pick(0, 1) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  CheckWindow<Half>(Dense(3, 8, 24), {{9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {9, 7}});
  CheckWindow<BFloat>(Dense(2, 3, 33), {{11, 13}, {3, 2}, {2, 3}, {1, -1}, {2, 1}, {5, 5}});
  CheckWindow<BFloat>(Dense(2, 40, 8, 3), {{6, 5}, {2, 2}, {4, 3}, {0, 0}, {1, 1}, {2, 2}});
  CheckTable<Half>({2, 17, 21, 5, 16, 40}, 5, false, true);
  CheckTable<BFloat>({3, 30, 70, 3, 5, 7}, 3, false, false);
  CheckTable<BFloat>({2, 17, 35, 4, 8, 16, 2}, 9, true, true);
  CheckTable<Half>({1, 25, 90, 3, 33, 9}, 6, true, false);
  CheckTable<Half>({4, 25, 40, 1, 72, 136}, 70, true, false);  // chains longer than kChainPositions
  for (int i = 0; i < RandomShapes(argc, argv); ++i) {
    CheckRandom<Half>();
    CheckRandom<BFloat>();
  }
  return Result();
}
