// Runs Hopper's TapGemm by itself: values against one thread a result in double, then times of the shapes that matter.
//
//     check [all|values|times] [names of cases to time]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "hopper/tap_gemm.h"

namespace {

using knnconv::gpu::Element;
using knnconv::gpu::TapGemm;
using knnconv::gpu::Taps;
using knnconv::hopper::Source;
using knnconv::hopper::TileForm;

void Check(cudaError_t code, int line) {
  if (code == cudaSuccess) return;
  std::printf("line %d: %s\n", line, cudaGetErrorString(code));
  std::exit(1);
}
#define CHECK(expression) Check(expression, __LINE__)

template <typename T>
T* ToDevice(const std::vector<T>& host) {
  T* device = nullptr;
  CHECK(cudaMalloc(&device, std::max<size_t>(host.size(), 1) * sizeof(T)));
  CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

struct Case {
  std::string name;
  Taps kind;
  bool transposed;
  int batch, depth, columns, source_rows, nodes, taps, slots;  // taps: K, or the mean of a list's length
  Element type = Element::kBF16, out_type = Element::kBF16;
  bool zero_empty = false, has_bias = true;
  double holes = 0.0;
  // kWindow
  int size[2] = {}, out[2] = {}, kernel[2] = {}, stride[2] = {1, 1}, padding[2] = {}, dilation[2] = {1, 1};
};

Case Table(std::string name, int batch, int depth, int columns, int source_rows, int nodes, int k) {
  return {name, Taps::kColumns, false, batch, depth, columns, source_rows, nodes, k, k};
}

// The forward window; Dinput turns a case around.
Case Dense(std::string name, int batch, int h, int w, int depth, int columns, int f, int stride, int pad, int dilation = 1) {
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

Case Dinput(Case c) {
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

// Taps of every node, one list after the other.
struct Lists {
  std::vector<int> begin, source, slot;
};

struct Problem {
  Case c;
  TapGemm gemm;
  Lists lists;
  int *begin, *source, *slot;
  size_t source_elements, out_elements;
  std::vector<void*> sources, outs;  // copies to cycle through
};

void Fill(std::vector<uint16_t>* to, Element type, float scale, std::mt19937* rng) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> pool(65537);
  for (auto& v : pool) {
    const float value = normal(*rng);
    if (type == Element::kF16) {
      const __half h = __float2half(value);
      std::memcpy(&v, &h, 2);
    } else {
      const __nv_bfloat16 h = __float2bfloat16(value);
      std::memcpy(&v, &h, 2);
    }
  }
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = pool[(i * 7919 + i / 65537) % 65537];
}

Lists ListsOf(const Case& c, std::vector<int>* table, std::vector<int>* slots, std::mt19937* rng) {
  Lists lists;
  lists.begin.push_back(0);
  if (c.kind == Taps::kSources && c.holes == 0) {  // a random table's, by source
    std::vector<std::vector<std::pair<int, int>>> of(c.nodes);
    for (int v = 0; v < c.slots; ++v) {
      for (int m = 0; m < c.source_rows; ++m) of[(*rng)() % c.nodes].push_back({v, m});
    }
    for (auto& list : of) {
      for (auto& [slot, source] : list) {
        lists.slot.push_back(slot);
        lists.source.push_back(source);
      }
      lists.begin.push_back(static_cast<int>(lists.source.size()));
    }
    return lists;
  }
  auto uniform = [&] { return std::uniform_real_distribution<double>()(*rng); };
  const int junk[] = {INT32_MIN, -50000000, -1, c.source_rows, c.source_rows + 1, INT32_MAX};
  for (int n = 0; n < c.nodes; ++n) {
    if (c.kind == Taps::kWindow) {
      const int oh = n / c.out[1], ow = n % c.out[1];
      for (int f = 0; f < c.kernel[0] * c.kernel[1]; ++f) {
        const int at[2] = {f / c.kernel[1], f % c.kernel[1]}, o[2] = {oh, ow};
        int s[2];
        bool exists = true;
        for (int d = 0; d < 2; ++d) {
          if (!c.transposed) {
            s[d] = o[d] * c.stride[d] + at[d] * c.dilation[d] - c.padding[d];
          } else {
            const int distance = o[d] + c.padding[d] - at[d] * c.dilation[d];
            exists = exists && distance % c.stride[d] == 0;
            s[d] = distance / c.stride[d];
          }
          exists = exists && s[d] >= 0 && s[d] < c.size[d];
        }
        if (!exists) continue;
        lists.source.push_back(s[0] * c.size[1] + s[1]);
        lists.slot.push_back(f);
      }
    } else if (c.kind == Taps::kSources) {
      int count = c.holes > 0 && n % 5 == 1 ? 0 : 1 + static_cast<int>((*rng)() % (2 * c.taps - 1));
      if (c.holes > 0 && n == 2) count = knnconv::gpu::kHubTaps + 1;
      if (c.holes > 0 && n == 3) count = knnconv::gpu::kHubTaps;
      std::vector<int> s(count);
      for (int& v : s) v = (*rng)() % c.slots;
      std::sort(s.begin(), s.end());
      for (int v : s) {
        lists.slot.push_back(v);
        lists.source.push_back(1 + (*rng)() % (c.source_rows - 1));
      }
    } else {
      std::vector<int> s(c.taps);
      for (int k = 0; k < c.taps; ++k) s[k] = c.kind == Taps::kColumns ? k : (*rng)() % c.slots;
      std::sort(s.begin(), s.end());
      for (int k = 0; k < c.taps; ++k) {
        int source = 1 + (*rng)() % (c.source_rows - 1), slot = s[k];
        const bool hole = uniform() < c.holes || (c.holes > 0 && n == 1);
        if (hole) source = junk[(*rng)() % 6];
        table->push_back(source);
        slots->push_back(slot);
        if (hole) continue;
        lists.source.push_back(source);
        lists.slot.push_back(slot);
      }
    }
    lists.begin.push_back(static_cast<int>(lists.source.size()));
  }
  return lists;
}

Problem Make(const Case& c, int copies) {
  std::mt19937 rng(7);
  Problem p{c};
  std::vector<int> table, slots;
  p.lists = ListsOf(c, &table, &slots, &rng);
  p.begin = ToDevice(p.lists.begin);
  p.source = ToDevice(p.lists.source);
  p.slot = ToDevice(p.lists.slot);
  p.source_elements = size_t{1} * c.batch * c.source_rows * c.depth;
  p.out_elements = size_t{1} * c.batch * c.nodes * c.columns;
  std::vector<uint16_t> x(p.source_elements), w(size_t{1} * c.slots * c.depth * c.columns);
  Fill(&x, c.type, 1.0f, &rng);
  Fill(&w, c.type, 0.05f, &rng);
  if (c.kind != Taps::kWindow && c.holes > 0) {  // no tap reads row 0
    for (int b = 0; b < c.batch; ++b) std::fill_n(&x[size_t{1} * b * c.source_rows * c.depth], c.depth, 0x7fff);
  }
  for (int i = 0; i < copies; ++i) {
    p.sources.push_back(ToDevice(x));
    void* out = nullptr;
    CHECK(cudaMalloc(&out, p.out_elements * 4 + 64));
    p.outs.push_back(out);
  }
  TapGemm& g = p.gemm;
  g = {};
  g.source = p.sources[0];
  g.weight = ToDevice(w);
  if (!c.transposed && c.has_bias) {
    std::vector<float> bias(c.columns);
    for (float& b : bias) b = std::normal_distribution<float>()(rng);
    g.bias = ToDevice(bias);
  }
  g.out = p.outs[0];
  g.source_type = g.compute_type = c.type;
  g.out_type = c.out_type;
  g.transposed = c.transposed;
  g.zero_empty_rows = c.zero_empty;
  g.kind = c.kind;
  g.batch = c.batch;
  g.nodes = c.nodes;
  g.source_rows = c.source_rows;
  g.depth = c.depth;
  g.columns = c.columns;
  g.slots = c.slots;
  if (c.kind == Taps::kSources) {
    std::vector<int> words;
    for (int b : p.lists.begin) {
      words.push_back(b);
      words.push_back(0);
    }
    g.table.offsets = ToDevice(words);
    g.table.sources = p.source;
    g.table.slots = p.slot;
  } else if (c.kind != Taps::kWindow) {
    g.table.columns = c.taps;
    g.table.sources = ToDevice(table);
    g.table.slots = c.kind == Taps::kRows ? ToDevice(slots) : nullptr;
  }
  for (int d = 0; d < 2; ++d) {
    g.window.kernel[d] = c.kernel[d];
    g.window.stride[d] = c.stride[d];
    g.window.padding[d] = c.padding[d];
    g.window.dilation[d] = c.dilation[d];
    g.window.source_size[d] = c.size[d];
    g.window.out_size[d] = c.out[d];
  }
  g.window.transposed = c.transposed;
  return p;
}

void Free(Problem* p) {
  for (void* s : p->sources) cudaFree(s);
  for (void* s : p->outs) cudaFree(s);
  cudaFree(p->begin), cudaFree(p->source), cudaFree(p->slot), cudaFree(const_cast<void*>(p->gemm.weight));
}

__device__ double At(const void* data, Element type, size_t i) {
  return knnconv::gpu::LoadElement(data, type, static_cast<int64_t>(i));
}

// Checks out[b, n, o] for rows (b, n) = first, first + step, ...; counts what is wrong and keeps one of them.
__global__ void Compare(TapGemm g, const int* begin, const int* source, const int* slot, size_t step, size_t rows,
                        unsigned long long* wrong, double* worst) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * g.columns) return;
  const int o = i % g.columns;
  const size_t row = i / g.columns * step, n = row % g.nodes, b = row / g.nodes;
  double sum = 0, bound = 0;
  const double sums = (begin[n + 1] - begin[n]) * (g.depth / 16.0);  // of 16 products, each truncated to fp32
  for (int p = begin[n]; p < begin[n + 1]; ++p) {
    for (int d = 0; d < g.depth; ++d) {
      const size_t at = g.transposed ? (size_t(slot[p]) * g.columns + o) * g.depth + d
                                     : (size_t(slot[p]) * g.depth + d) * g.columns + o;
      const double v = At(g.source, g.source_type, (b * g.source_rows + source[p]) * g.depth + d) *
                       At(g.weight, g.compute_type, at);
      sum += v;
      bound += fabs(v);
    }
  }
  const int count = begin[n + 1] - begin[n];
  const bool hub = g.kind == Taps::kSources && count > knnconv::gpu::kHubTaps;
  if (g.bias != nullptr && !(g.zero_empty_rows && count == 0)) sum += g.bias[o], bound += fabs(g.bias[o]);
  const size_t at = (b * g.nodes + n) * g.columns + o;
  const double got = At(g.out, g.out_type, at);
  const double ulp = g.out_type == Element::kF32 ? 0 : g.out_type == Element::kF16 ? 1.0 / 2048 : 1.0 / 256;
  const double error = fabs(got - sum), limit = ulp * fabs(sum) + (8 + sums / 8) * 1.2e-7 * bound + 6e-8;
  const bool right = hub ? isnan(got) : error <= limit;  // nobody has written a hub's row
  if (!right && atomicAdd(wrong, 1ull) == 0) {
    worst[0] = b, worst[1] = n, worst[2] = o, worst[3] = got, worst[4] = sum;
  }
}

bool IsRight(const Problem& p, size_t rows_at_most) {
  unsigned long long* wrong;
  double* worst;
  CHECK(cudaMallocManaged(&wrong, 8));
  CHECK(cudaMallocManaged(&worst, 40));
  *wrong = 0;
  const size_t all = size_t(p.c.batch) * p.c.nodes, step = std::max<size_t>(1, all / rows_at_most) | 1;
  const size_t rows = (all + step - 1) / step;
  Compare<<<(rows * p.c.columns + 255) / 256, 256>>>(p.gemm, p.begin, p.source, p.slot, step, rows, wrong, worst);
  CHECK(cudaDeviceSynchronize());
  if (*wrong != 0) {
    std::printf("  WRONG %llu of %zu, e.g. [%g, %g, %g]: %g, not %g\n", *wrong, rows * p.c.columns, worst[0], worst[1],
                worst[2], worst[3], worst[4]);
  }
  const bool right = *wrong == 0;
  cudaFree(wrong), cudaFree(worst);
  return right;
}

cudaStream_t stream;

void Run(const TapGemm& gemm, const TileForm& form) {
  const knnconv::gpu::Status status = knnconv::hopper::RunTapGemm({stream, 0, false}, gemm, form);
  if (!status.ok()) {
    std::printf("  %s:%d %s: %s\n", status.file, status.line, status.call, cudaGetErrorString(status.code));
    std::exit(1);
  }
}

double Time(Problem& p, const TileForm& form) {
  Run(p.gemm, form);
  CHECK(cudaStreamSynchronize(stream));
  const int copies = static_cast<int>(p.sources.size()), launches = 8;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    TapGemm gemm = p.gemm;
    gemm.source = p.sources[i % copies];
    gemm.out = p.outs[i % copies];
    Run(gemm, form);
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    CHECK(cudaEventRecord(from, stream));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaEventRecord(to, stream));
    CHECK(cudaEventSynchronize(to));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 4) times.push_back(ms / launches);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaEventDestroy(from), cudaEventDestroy(to);
  return times[times.size() / 2];
}

const TileForm kForms[] = {
    {Source::kBoxes, 128, 64},  {Source::kBoxes, 256, 64},  {Source::kBoxes, 128, 128},
    {Source::kBoxes, 256, 128}, {Source::kBoxes, 128, 192}, {Source::kBoxes, 128, 256},
    {Source::kRows, 128, 64},   {Source::kRows, 128, 128},  {Source::kRows, 128, 256},
    {Source::kBoxes, 128, 64, true},
};

// Whether a problem has tiles of this form.
bool Has(const Problem& p, const TileForm& form) {
  if (form.resident && !knnconv::hopper::CanStay(p.gemm)) return false;
  return p.c.kind != Taps::kWindow || form.source == Source::kBoxes;
}

const char* Name(const TileForm& form) {
  return form.source == Source::kRows ? "rows " : form.resident ? "resident " : "";
}


std::vector<Case> ValueCases() {
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
      add(Dinput(Table("table", 270, 64, 192, 20, 17, 5)), type, out, 0.1, false);
      add(Dense("dense 3x3", 5, 13, 11, 72, 136, 3, 1, 1), type, out, 0, false);
      add(Dense("dense 3x3 s2 p0", 3, 14, 11, 64, 64, 3, 2, 0), type, out, 0, false);
      add(Dense("dense 5x5 s3 d2", 3, 31, 29, 64, 72, 5, 3, 4, 2), type, out, 0, false);
      add(Dense("dense 3x3 p-1", 3, 14, 11, 64, 64, 3, 1, -1), type, out, 0, false);
      add(Dinput(Dense("dense 3x3", 5, 13, 11, 72, 136, 3, 1, 1)), type, out, 0, false);
      add(Dinput(Dense("dense 3x3 s2", 3, 15, 12, 64, 72, 3, 2, 1)), type, out, 0, false);
      add(Dinput(Dense("dense 1x1 s3", 3, 15, 13, 64, 72, 1, 3, 0)), type, out, 0, false);
      add(Dinput(Dense("dense 5x5 s3 d2", 3, 31, 29, 64, 72, 5, 3, 4, 2)), type, out, 0, false);
      add(Dinput(Dense("dense 3x3 p-1", 3, 14, 11, 64, 64, 3, 1, -1)), type, out, 0, false);
    }
  }
  return cases;
}

std::vector<Case> TimedCases() {
  std::vector<Case> cases = {
      Table("256 64", 256, 64, 64, 1024, 1024, 9),   Table("256 128", 256, 128, 128, 512, 512, 9),
      Table("256 256", 256, 256, 256, 256, 256, 9),  Table("256 512", 256, 512, 512, 64, 64, 9),
      Table("128 256 k25", 128, 256, 256, 512, 256, 25), Table("96-256", 128, 96, 256, 230, 230, 25),
      Table("256-384", 128, 256, 384, 60, 60, 9),    Table("384-384", 128, 384, 384, 60, 60, 9),
      Table("512 16", 512, 256, 256, 16, 16, 9),     Table("128 64 230", 128, 64, 64, 230, 230, 9),
      Table("40 64 230", 40, 64, 64, 230, 230, 9),   Table("10 64 230", 10, 64, 64, 230, 230, 9),
      Table("100k 64", 1, 64, 64, 100000, 100000, 27), Table("100k 128", 1, 128, 128, 100000, 100000, 27),
      Table("50k 256", 1, 256, 256, 50000, 50000, 27), Dense("c11", 256, 16, 16, 64, 64, 3, 1, 1),
      Dense("c16", 256, 8, 8, 64, 128, 3, 1, 1),
      Dense("r1", 128, 56, 56, 64, 64, 3, 1, 1),     Dense("r2", 128, 28, 28, 128, 128, 3, 1, 1),
      Dense("r3", 128, 14, 14, 256, 256, 3, 1, 1),   Dense("r4", 128, 7, 7, 512, 512, 3, 1, 1),
      Dense("r3s2", 128, 28, 28, 256, 256, 3, 2, 1)};
  for (Case& c : cases) c.has_bias = false;
  const size_t forward = cases.size();
  for (size_t i = 0; i < forward; ++i) cases.push_back(Dinput(cases[i]));
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::string what = argc > 1 ? argv[1] : "all";
  int failures = 0, runs = 0;
  for (const Case& c : what == "times" ? std::vector<Case>() : ValueCases()) {
    Problem p = Make(c, 1);
    bool takes = false;
    knnconv::hopper::Takes(0, p.gemm, &takes);
    if (!takes) std::printf("%s: not taken\n", c.name.c_str());
    for (const TileForm& form : kForms) {
      if (!takes || !Has(p, form)) continue;
      CHECK(cudaMemset(p.outs[0], 0xff, p.out_elements * 4 + 64));
      Run(p.gemm, form);
      CHECK(cudaStreamSynchronize(stream));
      ++runs;
      if (!IsRight(p, size_t{1} << 40)) {
        ++failures;
        std::printf("  in %s, type %d to %d, tile %s%d x %d\n", c.name.c_str(), static_cast<int>(c.type),
                    static_cast<int>(c.out_type), Name(form), form.rows, form.columns);
      }
    }
    Free(&p);
  }
  std::printf("%d of %d runs wrong\n", failures, runs);
  if (what == "values") return failures != 0;
  for (const Case& c : TimedCases()) {
    if (argc > 2 && std::find(argv + 2, argv + argc, c.name) == argv + argc) continue;
    Problem p = Make(c, 4);
    const double flops = 2.0 * c.batch * p.lists.source.size() * c.depth * c.columns;
    std::printf("%-14s", c.name.c_str());
    double best = 1e9;
    for (const TileForm& form : kForms) {
      if (form.columns > 64 && form.columns >= 2 * c.columns) continue;
      if (!Has(p, form) || (c.batch < 10 && c.kind != Taps::kWindow && form.source == Source::kBoxes)) continue;
      const double ms = Time(p, form);
      best = std::min(best, ms);
      std::printf("  %s%dx%d %.4f", Name(form), form.rows, form.columns, ms);
      if (!IsRight(p, 500)) std::printf(" WRONG");
      std::fflush(stdout);
    }
    const double automatic = Time(p, knnconv::hopper::ChooseForm(p.gemm, 132));
    std::printf("  auto %.4f  best %.4f = %.0f TFLOP/s\n", automatic, best, flops / best / 1e9);
    Free(&p);
  }
  return failures != 0;
}
