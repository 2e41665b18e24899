// What check.cu computes: small cases of every kind, and the shapes whose times matter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpu/tap_gemm.h"

using knnconv::gpu::Element;
using knnconv::gpu::TapGemm;
using knnconv::gpu::Taps;

struct Case {
  std::string name;
  Taps kind;
  bool transposed;
  int batch, depth, columns, source_rows, nodes, taps, slots;  // taps: K, or the mean of a list's length
  Element type = Element::kBF16, out_type = Element::kBF16;
  bool zero_empty = false, has_bias = true;
  double holes = 0.0;
  int slots_of_node = 0;  // kSources: neighbouring ones, that a node's taps have; 0: any
  // kWindow
  int size[2] = {}, out[2] = {}, kernel[2] = {}, stride[2] = {1, 1}, padding[2] = {}, dilation[2] = {1, 1};
  int groups = 1;
  // What each group has for itself. Biases are as weights.
  bool own_source = true, own_weight = false, own_table = true;
};

inline Case Groups(Case c, int groups, bool own_source, bool own_weight, bool own_table) {
  c.name += " x " + std::to_string(groups);
  c.groups = groups;
  c.own_source = own_source;
  c.own_weight = own_weight;
  c.own_table = own_table && c.kind != Taps::kWindow;
  return c;
}

inline Case Table(std::string name, int batch, int depth, int columns, int source_rows, int nodes, int k) {
  return {name, Taps::kColumns, false, batch, depth, columns, source_rows, nodes, k, k};
}

// The forward window; Dinput turns a case around.
inline Case Dense(std::string name, int batch, int h, int w, int depth, int columns, int f, int stride, int pad,
                  int dilation = 1) {
  Case c{name, Taps::kWindow, false, batch, depth, columns};
  auto to = [&](int n) { return (n + 2 * pad - (f - 1) * dilation - 1) / stride + 1; };
  for (int d = 0; d < 2; ++d) {
    c.size[d] = d == 0 ? h : w;
    c.out[d] = to(c.size[d]);
    c.kernel[d] = f;
    c.stride[d] = stride;
    c.padding[d] = pad;
    c.dilation[d] = dilation;
  }
  c.source_rows = c.size[0] * c.size[1];
  c.nodes = c.out[0] * c.out[1];
  c.taps = c.slots = f * f;
  return c;
}

inline Case Dinput(Case c) {
  c.name += " dx";
  c.transposed = true;
  std::swap(c.depth, c.columns);
  std::swap(c.source_rows, c.nodes);
  if (c.kind == Taps::kWindow) {
    for (int d = 0; d < 2; ++d) std::swap(c.size[d], c.out[d]);
  } else {
    c.kind = Taps::kSources;
  }
  return c;
}

inline std::vector<Case> GroupCases() {
  Case lists = Table("rows, 2", 2, 72, 64, 60, 33, 15);
  lists.kind = Taps::kRows;
  lists.slots = 20;
  return {
      Groups(Table("columns, 1", 1, 64, 72, 50, 141, 9), 6, true, false, true),
      Groups(Table("columns, 3", 3, 72, 136, 50, 41, 9), 4, true, true, true),
      Groups(Table("columns, 2", 2, 64, 64, 50, 141, 9), 4, false, false, true),
      Groups(Table("columns, 70", 70, 64, 64, 30, 13, 9), 3, true, true, false),
      Groups(Table("columns, 130", 130, 72, 64, 30, 13, 5), 2, false, true, true),
      Groups(lists, 6, true, false, true),
      Groups(lists, 3, true, true, false),
      Groups(Dinput(Table("table, 1", 1, 64, 72, 70, 57, 9)), 6, true, false, true),
      Groups(Dinput(Table("table, 3", 3, 72, 64, 70, 57, 9)), 4, true, true, true),
      Groups(Dinput(Table("table, 140", 140, 64, 64, 30, 17, 5)), 2, true, true, false),
      Groups(Dinput(Table("table, 128", 128, 256, 64, 21, 17, 7)), 3, true, true, true),
      Groups(Dense("dense 3x3", 2, 13, 11, 72, 136, 3, 1, 1), 3, true, true, false),
      Groups(Dense("dense 3x3 s2", 3, 14, 11, 64, 64, 3, 2, 0), 4, false, true, false),
      Groups(Dinput(Dense("dense 3x3", 2, 13, 11, 72, 136, 3, 1, 1)), 3, true, true, false),
      Groups(Dinput(Dense("dense 3x3 s2", 3, 15, 12, 64, 72, 3, 2, 1)), 4, true, true, false),
  };
}

inline std::vector<Case> ValueCases() {
  std::vector<Case> cases;
  auto add = [&](Case c, Element type, Element out, double holes, bool zero) {
    c.type = type;
    c.out_type = out;
    c.holes = holes;
    c.zero_empty = zero;
    cases.push_back(c);
  };
  for (Element type : {Element::kBF16, Element::kF16}) {
    for (Element out : {type, Element::kF32}) {
      const bool zero = out == type;
      add(Table("columns", 130, 72, 200, 40, 13, 9), type, out, 0.3, zero);
      add(Table("columns, long", 64, 64, 64, 40, 9, 70), type, out, 0.5, zero);
      Case rows = Table("rows", 300, 128, 136, 40, 11, 40);
      rows.kind = Taps::kRows;
      rows.slots = 7;
      add(rows, type, out, 0.3, zero);
      add(Dinput(Table("table", 130, 200, 72, 40, 13, 9)), type, out, 0.1, false);
      add(Table("columns, 1", 1, 64, 64, 300, 257, 27), type, out, 0.1, zero);
      add(Table("columns, 3", 3, 72, 200, 50, 141, 9), type, out, 0.5, zero);
      Case lists = Table("rows, 40", 40, 72, 64, 60, 33, 15);
      lists.kind = Taps::kRows;
      lists.slots = 20;
      add(lists, type, out, 0.3, zero);
      add(Dinput(Table("table, 1", 1, 64, 72, 300, 257, 27)), type, out, 0.1, false);
      add(Dinput(Table("table, 7", 7, 136, 64, 40, 33, 9)), type, out, 0.1, false);
      Case few_slots = Dinput(Table("table, 2 slots", 2, 200, 264, 60, 150, 15));
      few_slots.slots = 2;
      add(few_slots, type, out, 0.1, false);
      add(Dinput(Table("table, 1, 256", 1, 256, 128, 400, 700, 9)), type, out, 0.1, false);
      add(Dinput(Table("table, 3, sparse", 3, 72, 64, 40, 200, 1)), type, out, 0.1, false);
      // More slots than are sorted together; one slot, of many rounds; a list that several groups have.
      Case many_slots = Dinput(Table("table, 2, 100 slots", 2, 64, 64, 300, 257, 27));
      many_slots.slots = 100;
      add(many_slots, type, out, 0.1, false);
      Case one_slot = Dinput(Table("table, 1 slot", 1, 64, 128, 300, 257, 40));
      one_slot.slots = 1;
      add(one_slot, type, out, 0.1, false);
      add(Groups(Dinput(Table("table, shared", 3, 72, 64, 70, 57, 9)), 3, true, false, false), type, out, 0.1, false);
      add(Dinput(Table("table", 270, 64, 192, 20, 17, 5)), type, out, 0.1, false);
      // Two lists that blocks share: of any length, and of neighbours, an even and an odd number.
      add(Dinput(Table("table, 128, 256", 128, 256, 200, 40, 33, 9)), type, out, 0.1, false);
      add(Dinput(Table("neighbours, 128", 128, 256, 136, 60, 60, 9)), type, out, 0.0, false);
      add(Dinput(Table("neighbours, 128, odd", 128, 256, 136, 21, 21, 9)), type, out, 0.0, false);
      // Boxes of fewer rows than a tile; more tiles than multiprocessors, or clusters, sorted by their lists.
      add(Table("columns, 10", 10, 64, 64, 50, 300, 9), type, out, 0.2, zero);
      add(Dinput(Table("table, 10, 230", 10, 64, 64, 230, 300, 9)), type, out, 0.1, false);
      add(Dinput(Table("table, 20, 90", 20, 264, 136, 90, 60, 9)), type, out, 0.1, false);
      // Samples in shared memory: several for each block, one or two at once, cut into parts, lines that are not full.
      add(Table("sample", 130, 64, 64, 40, 13, 9), type, out, 0.3, zero);
      add(Table("sample, two at once", 300, 64, 48, 70, 200, 5), type, out, 0.3, zero);
      add(Table("sample, narrow", 7, 64, 40, 333, 650, 3), type, out, 0.2, zero);
      add(Table("sample, one slot", 3, 64, 56, 100, 129, 1), type, out, 0.5, zero);
      add(Table("sample, large", 140, 64, 64, 1100, 300, 9), type, out, 0.1, zero);
      // Several tiles for each block.
      add(Table("columns, many", 1, 64, 72, 900, 40000, 6), type, out, 0.2, zero);
      add(Dinput(Table("table, many", 2, 72, 64, 20000, 900, 3)), type, out, 0.1, false);
      add(Dense("dense 3x3", 5, 13, 11, 72, 136, 3, 1, 1), type, out, 0, false);
      add(Dense("dense 3x3 s2 p0", 3, 14, 11, 64, 64, 3, 2, 0), type, out, 0, false);
      add(Dense("dense 5x5 s3 d2", 3, 31, 29, 64, 72, 5, 3, 4, 2), type, out, 0, false);
      add(Dense("dense 3x3 p-1", 3, 14, 11, 64, 64, 3, 1, -1), type, out, 0, false);
      add(Dinput(Dense("dense 3x3", 5, 13, 11, 72, 136, 3, 1, 1)), type, out, 0, false);
      add(Dinput(Dense("dense 3x3 s2", 3, 15, 12, 64, 72, 3, 2, 1)), type, out, 0, false);
      add(Dinput(Dense("dense 1x1 s3", 3, 15, 13, 64, 72, 1, 3, 0)), type, out, 0, false);
      add(Dinput(Dense("dense 1x1 s2 p1", 3, 9, 7, 64, 72, 1, 2, 1)), type, out, 0, false);
      add(Dinput(Dense("dense 5x5 s3 d2", 3, 31, 29, 64, 72, 5, 3, 4, 2)), type, out, 0, false);
      add(Dinput(Dense("dense 3x3 p-1", 3, 14, 11, 64, 64, 3, 1, -1)), type, out, 0, false);
      // More tiles than multiprocessors, of each height.
      add(Dense("dense 3x3, many", 27, 31, 31, 16, 72, 3, 1, 1), type, out, 0, false);
      add(Dinput(Dense("dense 3x3 s2, many", 27, 31, 31, 72, 16, 3, 2, 1)), type, out, 0, false);
      for (const Case& c : GroupCases()) add(c, type, out, c.kind == Taps::kWindow ? 0 : 0.2, zero && !c.transposed);
    }
  }
  return cases;
}

inline std::vector<Case> TimedCases() {
  std::vector<Case> cases = {
      Table("256 64", 256, 64, 64, 1024, 1024, 9),   Table("256 128", 256, 128, 128, 512, 512, 9),
      Table("256 256", 256, 256, 256, 256, 256, 9),  Table("256 512", 256, 512, 512, 64, 64, 9),
      Table("128 256 k25", 128, 256, 256, 512, 256, 25), Table("96-256", 128, 96, 256, 230, 230, 25),
      Table("256-384", 128, 256, 384, 60, 60, 9),    Table("384-384", 128, 384, 384, 60, 60, 9),
      Table("512 16", 512, 256, 256, 16, 16, 9),     Table("128 64 230", 128, 64, 64, 230, 230, 9),
      Table("40 64 230", 40, 64, 64, 230, 230, 9),   Table("10 64 230", 10, 64, 64, 230, 230, 9),
      Table("1 64 230", 1, 64, 64, 230, 230, 9),     Table("16 64 1024", 16, 64, 64, 1024, 1024, 9),
      Table("128 128 230", 128, 128, 128, 230, 230, 9), Table("128 512 60", 128, 512, 512, 60, 60, 9),
      Table("256 256 100", 256, 256, 256, 100, 100, 9), Table("384-256", 128, 384, 256, 60, 60, 9),
      Table("128-512", 128, 128, 512, 60, 60, 9),    Table("512 512 16", 512, 512, 512, 16, 16, 9),
      Table("1024 256 16", 1024, 256, 256, 16, 16, 9), Table("768-768", 128, 768, 768, 30, 30, 9),
      Table("192-192", 256, 192, 192, 128, 128, 9),  Table("320-320", 128, 320, 320, 100, 100, 9),
      Table("128-256", 256, 128, 256, 128, 128, 9),  Table("512-256 k25", 128, 512, 256, 230, 230, 25),
      Table("160-256", 128, 160, 256, 230, 230, 9),  Table("96-256 k9", 256, 96, 256, 128, 128, 9),
      Table("224-512", 128, 224, 512, 115, 115, 9),
      Groups(Table("4k 64", 1, 64, 64, 4096, 4096, 16), 16, true, false, true),
      Table("65k 64", 1, 64, 64, 65536, 65536, 16),
      Groups(Table("4k 128", 1, 128, 128, 4096, 4096, 16), 16, true, false, true),
      Table("65k 128", 1, 128, 128, 65536, 65536, 16),
      Table("1k 64", 1, 64, 64, 1000, 1000, 27),     Table("100k 64", 1, 64, 64, 100000, 100000, 27),
      Table("100k 64-128", 1, 64, 128, 100000, 100000, 27),
      Table("100k 128", 1, 128, 128, 100000, 100000, 27),
      Table("50k 256", 1, 256, 256, 50000, 50000, 27), Table("20k 32", 1, 32, 32, 20000, 20000, 27),
      Dense("c11", 256, 16, 16, 64, 64, 3, 1, 1),
      Dense("c16", 256, 8, 8, 64, 128, 3, 1, 1),
      Dense("r1", 128, 56, 56, 64, 64, 3, 1, 1),     Dense("r2", 128, 28, 28, 128, 128, 3, 1, 1),
      Dense("r3", 128, 14, 14, 256, 256, 3, 1, 1),   Dense("r4", 128, 7, 7, 512, 512, 3, 1, 1),
      Dense("r3s2", 128, 28, 28, 256, 256, 3, 2, 1)};
  for (Case& c : cases) c.has_bias = false;
  const size_t forward = cases.size();
  for (size_t i = 0; i < forward; ++i) cases.push_back(Dinput(cases[i]));
  return cases;
}
