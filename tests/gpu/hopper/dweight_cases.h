// What check_dweight.cu computes: small cases of every kind, and the shapes whose times matter.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

struct Case {
  std::string name;
  bool is_table, has_slots, has_holes;
  int batch, channels, columns;
  int sources, outputs, neighbours, slots;                            // of a table
  int in[2], kernel[2], stride[2], padding[2], dilation[2], out[2];  // of a dense convolution
  // Groups have three dimensions: two of the result, and one that is summed. Of an operand, bit d says whether it has
  // dimension d; else that shares it.
  int dims[3];
  unsigned own_x, own_g, own_table;

  int results() const { return dims[0] * dims[1]; }
  int groups() const { return results() * dims[2]; }

  static bool Has(unsigned own, int d) { return (own >> d & 1) != 0; }
  // Matrices of an operand; from one to the next along a dimension; and the one of a group.
  int MatricesOf(unsigned own) const { return StepOf(own, -1); }
  int StepOf(unsigned own, int d) const {
    int step = d < 0 || Has(own, d) ? 1 : 0;
    for (int inner = d + 1; inner < 3; ++inner) step *= Has(own, inner) ? dims[inner] : 1;
    return step;
  }
  int MatrixOf(unsigned own, int group) const {
    int matrix = 0;
    for (int d = 2; d >= 0; --d) {
      matrix += group % dims[d] * StepOf(own, d);
      group /= dims[d];
    }
    return matrix;
  }
};

inline Case Table(std::string name, int batch, int c, int o, int n, int m, int k, int v = 0) {
  Case t = {};
  t.name = name;
  t.dims[0] = t.dims[1] = t.dims[2] = 1;
  t.is_table = true;
  t.has_slots = v > 0;
  t.has_holes = true;
  t.batch = batch, t.channels = c, t.columns = o;
  t.sources = n, t.outputs = m, t.neighbours = k, t.slots = v > 0 ? v : k;
  return t;
}

inline Case Dense(std::string name, int batch, int h, int w, int c, int o, std::array<int, 2> kernel,
                  std::array<int, 2> stride, std::array<int, 2> pad, std::array<int, 2> dilation) {
  Case t = {};
  t.name = name;
  t.dims[0] = t.dims[1] = t.dims[2] = 1;
  t.batch = batch, t.channels = c, t.columns = o, t.slots = kernel[0] * kernel[1];
  const int in[2] = {h, w};
  for (int d = 0; d < 2; ++d) {
    t.in[d] = in[d], t.kernel[d] = kernel[d], t.stride[d] = stride[d], t.padding[d] = pad[d];
    t.dilation[d] = dilation[d];
    t.out[d] = (in[d] + 2 * pad[d] - (kernel[d] - 1) * dilation[d] - 1) / stride[d] + 1;
  }
  t.sources = h * w;
  t.outputs = t.out[0] * t.out[1];
  t.neighbours = t.slots;
  return t;
}

inline Case Dense(std::string name, int batch, int h, int w, int c, int o, int f, int stride, int pad,
                  int dilation = 1) {
  return Dense(name, batch, h, w, c, o, {f, f}, {stride, stride}, {pad, pad}, {dilation, dilation});
}

inline Case Groups(Case c, const std::array<int, 3>& dims, unsigned own_x, unsigned own_g, unsigned own_table) {
  std::copy(dims.begin(), dims.end(), c.dims);
  c.own_x = own_x, c.own_g = own_g, c.own_table = own_table;
  return c;
}

// Of one dimension, which is summed or is the result's, too.
inline Case Groups(Case c, int groups, bool are_summed, bool own_x, bool own_g, bool own_table) {
  const int d = are_summed ? 2 : 1;
  std::array<int, 3> dims = {1, 1, 1};
  dims[d] = groups;
  return Groups(c, dims, unsigned{own_x} << d, unsigned{own_g} << d, unsigned{own_table} << d);
}

inline std::vector<Case> ValueCases() {
  return {
      Table("columns", 70, 72, 88, 41, 37, 9),
      Table("columns_wide", 57, 200, 328, 23, 45, 5),
      Table("columns_deep", 110, 64, 64, 300, 257, 9),
      Table("slots", 70, 72, 88, 41, 37, 9, 7),
      Table("slots_many", 40, 136, 200, 41, 60, 5, 150),
      Dense("dense", 5, 13, 9, 64, 64, 3, 1, 1),
      Dense("dense_ragged", 7, 9, 14, 72, 136, 3, 2, 1),
      Dense("dense_dilated", 3, 20, 17, 48, 96, 3, 1, 2, 2),
      Dense("dense_1x1", 3, 8, 8, 128, 264, 1, 1, 0),
      Dense("dense_negative", 3, 19, 12, 56, 64, 2, 3, -2),
      Table("narrow", 35, 8, 24, 30, 20, 3),
      Dense("dense_narrow", 2, 6, 40, 16, 8, 3, 1, 1),
  };
}

// Small batches, whose rows of x are gathered.
inline std::vector<Case> GatherCases() {
  return {
      Table("gathered", 1, 64, 64, 300, 257, 27),
      Table("gathered_wide", 3, 200, 328, 41, 137, 5),
      Table("gathered_batch", 31, 72, 88, 23, 45, 9),
      Table("gathered_deep", 2, 136, 72, 90, 4100, 3),
      Table("gathered_narrow", 5, 8, 24, 30, 20, 3),
      Table("gathered_part", 70, 64, 64, 300, 57, 9),
      Table("gathered_part_wide", 33, 200, 328, 23, 45, 5),
  };
}

// Tables whose samples of x fit into shared memory; in the last, blocks sum more than a chain.
inline std::vector<Case> SampleCases() {
  return {
      Table("samples", 40, 64, 64, 230, 230, 9),
      Table("samples_one", 1, 64, 64, 300, 257, 27),
      Table("samples_ragged", 7, 64, 48, 100, 300, 5),
      Table("samples_narrow", 33, 64, 8, 64, 17, 4),
      Table("samples_large", 3, 64, 64, 1000, 1024, 9),
      Table("samples_deep", 130, 64, 64, 90, 300, 27),
  };
}

// Gradients a sample.
inline std::vector<Case> DenseGroupCases() {
  return {
      Groups(Dense("images", 2, 8, 8, 72, 136, 3, 1, 1), 5, false, true, true, false),
      Groups(Dense("images_stride", 4, 15, 16, 64, 64, 3, 2, 1), 3, false, true, true, false),
      Groups(Dense("images_of_x", 1, 16, 12, 64, 72, 3, 1, 1), 3, false, true, false, false),
      Groups(Dense("images_of_g", 3, 9, 7, 64, 328, 3, 1, 1), 4, false, false, true, false),
  };
}

// Tables without slots, one a sample; or gradients a sample.
inline std::vector<Case> GroupCases() {
  return {
      Groups(Table("per_sample", 1, 64, 64, 90, 137, 9), 6, true, true, true, true),
      Groups(Table("per_sample_wide", 1, 200, 328, 41, 57, 5), 5, true, true, true, true),
      Groups(Table("per_sample_batch", 3, 72, 88, 23, 45, 9), 4, true, true, true, true),
      Groups(Table("split_rows", 7, 64, 72, 50, 41, 4), 4, true, false, true, true),
      Groups(Table("gradients", 1, 64, 64, 90, 37, 9), 6, false, true, true, true),
      Groups(Table("gradients_of_a_table", 40, 72, 88, 23, 15, 9), 3, false, true, true, false),
      Groups(Table("gradients_of_tables", 2, 136, 64, 23, 45, 5), 4, false, false, true, true),
      Groups(Table("gradients_of_g", 3, 64, 256, 23, 45, 3), 150, false, false, true, false),
      Groups(Table("models_of_samples", 1, 64, 72, 50, 41, 9), {1, 3, 5}, 0b110, 0b110, 0b100),
      Groups(Table("models_of_one_x", 3, 64, 64, 50, 41, 4), {1, 4, 3}, 0b100, 0b110, 0b100),
      Groups(Table("models_of_one_table", 2, 72, 64, 50, 37, 4), {1, 4, 3}, 0b010, 0b110, 0b000),
      Groups(Table("models_by_sample", 1, 64, 128, 50, 41, 9), {3, 4, 1}, 0b010, 0b011, 0b010),
      Groups(Table("some_of_each", 2, 136, 64, 33, 29, 5), {3, 2, 4}, 0b101, 0b111, 0b110),
  };
}

// Tables with slots, whose rows of x and of g are gathered: small batches, and groups of all kinds.
inline std::vector<Case> SlotGatherCases() {
  return {
      Table("slots_gathered", 1, 64, 64, 300, 257, 9, 27),
      Table("slots_gathered_wide", 3, 200, 328, 41, 137, 5, 3),
      Table("slots_gathered_batch", 31, 72, 88, 23, 45, 9, 7),
      Table("slots_gathered_deep", 2, 136, 72, 90, 4100, 3, 2),
      Table("slots_gathered_narrow", 5, 8, 24, 30, 20, 3, 150),
      Groups(Table("slots_per_sample", 1, 64, 64, 90, 137, 9, 7), 6, true, true, true, true),
      Groups(Table("slots_per_sample_many", 2, 72, 136, 50, 11, 4, 60), 70, true, true, true, true),
      Groups(Table("slots_split_rows", 40, 64, 72, 50, 41, 4, 5), 4, true, false, true, true),
      Groups(Table("slots_gradients", 1, 128, 64, 90, 37, 9, 4), 6, false, true, true, false),
      Groups(Table("slots_of_both", 1, 64, 72, 50, 41, 9, 12), {1, 3, 5}, 0b110, 0b110, 0b100),
      Groups(Table("slots_some_of_each", 2, 136, 64, 33, 29, 5, 9), {3, 2, 4}, 0b101, 0b111, 0b110),
  };
}

// Kernels of three columns, whose taps can share boxes of x.
inline std::vector<Case> StripCases() {
  return {
      Dense("strips", 5, 13, 9, 64, 64, 3, 1, 1),
      Dense("strips_ragged", 7, 9, 14, 136, 200, 3, 1, 1),
      Dense("strips_valid", 3, 12, 70, 200, 264, 3, 1, 0),
      Dense("strips_dilated", 3, 20, 17, 48, 96, 3, 1, 2, 2),
      Dense("strips_far", 3, 13, 19, 64, 72, 3, 1, 3, 4),
      Dense("strips_wide", 2, 5, 6, 72, 64, 3, 1, 4),
      Dense("strips_negative", 3, 19, 12, 56, 64, 3, 1, -2),
      Dense("strips_lines", 2, 19, 12, 64, 64, {3, 3}, {2, 1}, {1, 1}, {3, 1}),
      Dense("strips_flat", 4, 11, 12, 64, 136, {1, 3}, {1, 1}, {0, 1}, {1, 1}),
      Dense("strips_tall", 4, 11, 12, 64, 64, {5, 3}, {1, 1}, {2, 0}, {1, 1}),
      Dense("strips_one", 150, 1, 2, 64, 64, 3, 1, 1),
      Dense("strips_narrow", 2, 6, 40, 16, 8, 3, 1, 1),
  };
}
