// What check_dweight.cu computes: small cases of every kind, and the shapes whose times matter.
#pragma once

#include <array>
#include <string>
#include <vector>

struct Case {
  std::string name;
  bool is_table, has_slots, has_holes;
  int batch, channels, columns;
  int sources, outputs, neighbours, slots;                            // of a table
  int in[2], kernel[2], stride[2], padding[2], dilation[2], out[2];  // of a dense convolution
  int groups;       // of operands
  bool are_summed;  // in one gradient; else each has its own
  bool own_x, own_g, own_table;

  int results() const { return are_summed ? 1 : groups; }
};

inline Case Table(std::string name, int batch, int c, int o, int n, int m, int k, int v = 0) {
  Case t = {};
  t.name = name;
  t.groups = 1;
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
  t.groups = 1;
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

inline Case Groups(Case c, int groups, bool are_summed, bool own_x, bool own_g, bool own_table) {
  c.groups = groups;
  c.are_summed = are_summed;
  c.own_x = own_x, c.own_g = own_g, c.own_table = own_table;
  return c;
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
