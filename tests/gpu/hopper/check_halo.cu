// Runs Hopper's halo kernels by themselves: random small problems against sums in double, then times of the shapes that
// matter, replayed from a graph.
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/check_halo.cu
//         lib/hopper/halo*.cu lib/hopper/{halo,halo_plan,halo_dweight,halo_dweight_plan,pixel_classes,tensor_map}.cc
//         lib/gpu/{halo_plan,halo_dweight_plan}.cc -o check_halo
//     check_halo [all|values|few|times|once] [random problems [but the first], or part of the names to time]
// few: values of one type in each kind of tile, for compute-sanitizer; once: runs what it would time, for a profiler.
#include <algorithm>
#include <random>
#include <string>

#include "halo_problem.h"
#include "hopper/halo.h"
#include "hopper/halo_dweight.h"

namespace {

using namespace check;

enum class Pass { kForward, kDinput, kDweight };
const char* const kNames[] = {"forward", "dinput", "dweight"};

__global__ void FillKernel(void* to, Element type, int64_t count, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t bits = static_cast<uint32_t>(i) * 2654435761u + seed;
  bits = (bits ^ bits >> 16) * 0x85ebca6bu;
  bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
  StoreElement(to, type, i, static_cast<float>((bits ^ bits >> 16) & 0xffff) / 32768.0f - 1.0f);
}

void* Filled(Element type, int64_t count, uint32_t seed) {
  void* to = nullptr;
  CHECK(cudaMalloc(&to, count * ElementBytes(type) + 16));
  FillKernel<<<(count + 255) / 256, 256>>>(to, type, count, seed);
  return to;
}

// Counts results that are further from the exact sum than rounding and truncated partial sums of 16 products explain.
__global__ void CompareKernel(Pass pass, Window w, Operands a, const void* got, Element type, int64_t count,
                              int64_t offset, unsigned long long* wrong) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Sum sum = pass == Pass::kForward  ? Forward(w, a, i)
                  : pass == Pass::kDinput ? Dinput(w, a, i)
                                          : Gradient(w, a, offset + i);
  const double value = LoadElement(got, type, i);
  const double eps = type == Element::kF32 ? 1.2e-7 : type == Element::kF16 ? 5e-4 : 4e-3;
  const double bound = eps * fabs(sum.exact) + 16 * 1.2e-7 * sum.absolute;
  const bool right = isnan(sum.exact)   ? isnan(value)
                     : isinf(sum.exact) ? value == sum.exact || isnan(value)
                                        : fabs(value - sum.exact) <= bound;
  if (!right) atomicAdd(wrong, 1ull);
}

struct Problem {
  Window w;
  Operands a;
  void* out;  // y, dx or dw
  float *db, *partials;
  int64_t partial_elements;
  Element out_type;
  int number = 0;  // of random ones
};

Problem Make(const Window& w, Element x_type, Element type, Element out_type, int64_t slices, uint32_t seed) {
  Problem p{w, {}, nullptr, nullptr, nullptr, slices * (w.weight_size() + w.columns), out_type};
  p.a.x_type = x_type;
  p.a.type = type;
  p.a.x = Filled(x_type, w.x_size(), seed);
  p.a.g = Filled(type, w.y_size(), seed + 1);
  p.a.weight = Filled(type, w.weight_size(), seed + 2);
  p.a.bias = static_cast<const float*>(Filled(Element::kF32, w.columns, seed + 3));
  CHECK(cudaMalloc(&p.out, 4 * std::max({w.x_size(), w.y_size(), w.weight_size()})));
  CHECK(cudaMalloc(&p.db, 4 * w.columns));
  CHECK(cudaMalloc(&p.partials, 4 * p.partial_elements));
  return p;
}

void Free(const Problem& p) {
  for (const void* at : {p.a.x, p.a.g, p.a.weight, static_cast<const void*>(p.a.bias)}) cudaFree(const_cast<void*>(at));
  cudaFree(p.out), cudaFree(p.db), cudaFree(p.partials);
}

// Whether the kernels take the problem, or by_shape, are chosen for it; if so, runs them.
bool Run(const Problem& p, Pass pass, bool by_shape, cudaStream_t stream) {
  const LaunchSite site{stream, 0, false};
  Device device;
  Check(GetDevice(0, &device));
  if (pass == Pass::kDweight) {
    Dweight dweight{};
    dweight.x = p.a.x;
    dweight.g = p.a.g;
    dweight.dw = p.out;
    dweight.db = p.db;
    dweight.partials = p.partials;
    dweight.partial_elements = p.partial_elements;
    dweight.x_type = p.a.x_type;
    dweight.g_type = p.a.type;
    dweight.dw_type = p.out_type;
    dweight.db_type = Element::kF32;
    dweight.batch = p.w.batch;
    dweight.slots = p.w.kernel[0] * p.w.kernel[1];
    dweight.channels = p.w.channels;
    dweight.columns = p.w.columns;
    const DenseTaps taps = TapsOf(p.w);
    knnconv::hopper::HaloDweightPlan plan;
    if (!knnconv::hopper::ChooseHalo(dweight, taps, device, !by_shape, &plan)) return false;
    Check(knnconv::hopper::RunHalo(site, dweight, taps, device, plan));
    return true;
  }
  TapGemm gemm = GemmOf(p.w, pass == Pass::kDinput);
  gemm.source = pass == Pass::kDinput ? p.a.g : p.a.x;
  gemm.weight = p.a.weight;
  gemm.bias = pass == Pass::kDinput ? nullptr : p.a.bias;
  gemm.out = p.out;
  gemm.source_type = pass == Pass::kDinput ? p.a.type : p.a.x_type;
  gemm.compute_type = p.a.type;
  gemm.out_type = p.out_type;
  knnconv::hopper::HaloPlan plan;
  if (!knnconv::hopper::ChooseHalo(gemm, device, !by_shape, &plan)) return false;
  Check(knnconv::hopper::RunHalo(site, gemm, device, plan));
  return true;
}

int64_t Results(const Window& w, Pass pass) {
  return pass == Pass::kForward ? w.y_size() : pass == Pass::kDinput ? w.x_size() : w.weight_size();
}

// The number of wrong results.
int64_t Wrong(const Problem& p, Pass pass) {
  unsigned long long* wrong;
  CHECK(cudaMallocManaged(&wrong, sizeof(*wrong)));
  *wrong = 0;
  const auto compare = [&](const void* got, Element type, int64_t count, int64_t offset) {
    CompareKernel<<<(count + 127) / 128, 128>>>(pass, p.w, p.a, got, type, count, offset, wrong);
  };
  compare(p.out, p.out_type, Results(p.w, pass), 0);
  if (pass == Pass::kDweight) compare(p.db, Element::kF32, p.w.columns, p.w.weight_size());
  CHECK(cudaDeviceSynchronize());
  const int64_t count = static_cast<int64_t>(*wrong);
  cudaFree(wrong);
  return count;
}

std::mt19937 rng(1);
int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(rng); }

Window RandomWindow() {
  constexpr int kWidths[] = {8, 16, 24, 32, 40, 64};
  Window w{};
  w.batch = Pick(1, 5);
  const bool pairs = Pick(0, 3) == 0, folds = !pairs && Pick(0, 3) == 0;
  w.channels = pairs || folds ? Pick(1, 4) : kWidths[Pick(0, 5)];
  w.columns = Pick(0, 2) > 0 ? kWidths[Pick(0, 5)] : Pick(1, 18) * 8;
  for (int d = 0; d < 2; ++d) {
    w.kernel[d] = pairs && d == 1 ? Pick(0, 1) * 4 + 3 : Pick(1, folds ? 8 : pairs ? 7 : 4);
    w.stride[d] = pairs && d == 1 ? Pick(1, 2) : Pick(0, 1) == 0 ? 1 : Pick(1, 3);
    w.dilation[d] = (pairs && d == 1) || Pick(0, 2) > 0 ? 1 : 2;
    w.padding[d] = Pick(-1, 3);
    // Often whole tiles, which weight gradients need.
    w.out[d] = Pick(0, 1) == 0 ? Pick(1, 40) : 16 * Pick(1, 2);
    w.in[d] = std::max(1, (w.out[d] - 1) * w.stride[d] + (w.kernel[d] - 1) * w.dilation[d] + 1 - 2 * w.padding[d] +
                              Pick(-1, 2));
  }
  if (pairs && Pick(0, 3) > 0) w.in[1] = (w.in[1] + 7) / 8 * 8;  // lines that the copy engine takes
  return w;
}

void Tell(const Problem& p, Pass pass) {
  const Window& w = p.w;
  std::printf("  %d, %s: %dx%dx%d, %d -> %d, kernel %dx%d, stride %dx%d, padding %dx%d, dilation %dx%d, out %dx%d, ",
              p.number, kNames[static_cast<int>(pass)], w.batch, w.in[0], w.in[1], w.channels, w.columns, w.kernel[0],
              w.kernel[1], w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.dilation[0], w.dilation[1], w.out[0],
              w.out[1]);
  std::printf("types %d %d %d, %lld partials\n", static_cast<int>(p.a.x_type), static_cast<int>(p.a.type),
              static_cast<int>(p.out_type), static_cast<long long>(p.partial_elements));
}

// The number of passes that come out wrong; counts those that the kernels take.
int CheckPasses(const Problem& p, int (*runs)[3]) {
  const Window& w = p.w;
  int failures = 0;
  for (Pass pass : {Pass::kForward, Pass::kDinput, Pass::kDweight}) {
    CHECK(cudaMemset(p.out, 0xff, 4 * Results(w, pass)));
    if (!Run(p, pass, false, nullptr)) continue;
    ++(*runs)[static_cast<int>(pass)];
    if (const cudaError_t ran = cudaDeviceSynchronize(); ran != cudaSuccess) {
      std::printf("FAILED: %s\n", cudaGetErrorString(ran));
      Tell(p, pass);
      std::exit(1);
    }
    const int64_t wrong = Wrong(p, pass);
    if (wrong == 0) continue;
    ++failures;
    std::printf("%lld of %lld wrong\n", static_cast<long long>(wrong), static_cast<long long>(Results(w, pass)));
    Tell(p, pass);
  }
  return failures;
}

int Told(int failures, const int (&runs)[3]) {
  std::printf("%d of %d forward, %d dinput and %d dweight runs wrong\n", failures, runs[0], runs[1], runs[2]);
  return failures;
}

// Of random problems, those from number `first` on.
int CheckValues(int problems, int first) {
  int failures = 0, runs[3] = {};
  for (int i = 0; i < problems; ++i) {
    const Window w = RandomWindow();
    const Element type = Pick(0, 1) == 0 ? Element::kF16 : Element::kBF16, wide = Element::kF32;
    const bool float_x = w.channels <= 4 && Pick(0, 1) == 0;
    const Element x_type = float_x ? wide : type, out_type = Pick(0, 1) == 0 ? wide : type;
    Problem p = Make(w, x_type, type, out_type, Pick(0, 1) == 0 ? 200 : 2, rng());
    p.number = i;
    if (Pick(0, 2) == 0) {  // reaches the results of its taps and no others
      const float infinity = INFINITY;
      const uint32_t bits = type == Element::kF16 ? 0x7c00u : 0x7f80u;
      const int64_t at = Pick(0, static_cast<int>(w.x_size()) - 1);
      CHECK(cudaMemcpy(static_cast<char*>(const_cast<void*>(p.a.x)) + at * ElementBytes(p.a.x_type),
                       float_x ? static_cast<const void*>(&infinity) : &bits, ElementBytes(p.a.x_type),
                       cudaMemcpyHostToDevice));
    }
    if (i >= first) failures += CheckPasses(p, &runs);
    Free(p);
  }
  return Told(failures, runs);
}

// Problems that cover all kinds of kernels, for compute-sanitizer.
int CheckFew() {
  int failures = 0, runs[3] = {};
  const Window line{1, {32, 16}, 16, 16, {3, 1}, {1, 1}, {1, 0}, {1, 1}, {32, 16}};  // of which dw has few groups
  const Window windows[] = {Square(2, 16, 16, 24, 3, 1, 1), Square(3, 16, 32, 64, 3, 1, 1),
                            Square(1, 18, 3, 24, 7, 2, 3), Square(2, 36, 3, 64, 5, 1, 2), line};
  for (const Window& w : windows) {
    const Problem p = Make(w, Element::kBF16, Element::kBF16, Element::kBF16, 20, 1);
    failures += CheckPasses(p, &runs);
    Free(p);
  }
  return Told(failures, runs);
}

double Milliseconds(std::vector<Problem>& copies, Pass pass, cudaStream_t stream) {
  for (const Problem& p : copies) Run(p, pass, false, stream);
  return GraphMilliseconds(stream, 24, [&](int i) { Run(copies[i % copies.size()], pass, false, stream); });
}

void Time(const std::string& name, const Window& w, Element x_type, const std::string& wanted, bool once) {
  if (name.find(wanted) == std::string::npos) return;
  constexpr double kBytesOfMillisecond = 4.3e9;  // that the card copies
  const Element type = Element::kBF16;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<Problem> copies;
  for (uint32_t i = 0; i < 4; ++i) copies.push_back(Make(w, x_type, type, type, 1024, i));
  const double bytes = static_cast<double>(w.x_size() * ElementBytes(x_type) + w.y_size() * 2);
  std::printf("%-24s floor %.4f", name.c_str(), bytes / kBytesOfMillisecond);
  for (Pass pass : {Pass::kForward, Pass::kDinput, Pass::kDweight}) {
    if (!Run(copies[0], pass, false, stream) || once) continue;
    const bool chosen = Run(copies[0], pass, true, stream);
    std::printf("  %s %.4f%s", kNames[static_cast<int>(pass)], Milliseconds(copies, pass, stream),
                chosen ? "" : " (not chosen)");
  }
  std::printf("\n");
  for (const Problem& p : copies) Free(p);
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  if (what == "few") return CheckFew() != 0;
  const bool once = what == "once";
  const std::string wanted = argc > 2 && (once || what == "times") ? argv[2] : "";
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int failures = once || what == "times" ? 0 : CheckValues(number(2, 200), number(3, 0));
  if (what == "values") return failures != 0;
  const auto time = [&](const char* name, const Window& w, Element x_type) { Time(name, w, x_type, wanted, once); };
  time("256x32x32 3->32", Square(256, 32, 3, 32, 3, 1, 1), Element::kBF16);
  time("256x32x32 32->32", Square(256, 32, 32, 32, 3, 1, 1), Element::kBF16);
  time("256x32x32 16->16", Square(256, 32, 16, 16, 3, 1, 1), Element::kBF16);
  time("256x32x32 8->8", Square(256, 32, 8, 8, 3, 1, 1), Element::kBF16);
  time("256x16x16 32->64", Square(256, 16, 32, 64, 3, 1, 1), Element::kBF16);
  time("256x16x16 64->64", Square(256, 16, 64, 64, 3, 1, 1), Element::kBF16);
  time("256x8x8 64->128", Square(256, 8, 64, 128, 3, 1, 1), Element::kBF16);
  time("128x56x56 32->32", Square(128, 56, 32, 32, 3, 1, 1), Element::kBF16);
  time("128x56x56 64->64", Square(128, 56, 64, 64, 3, 1, 1), Element::kBF16);
  time("7x7 stem 3->64", Square(128, 224, 3, 64, 7, 2, 3), Element::kBF16);
  time("7x7 stem 3->64 float x", Square(128, 224, 3, 64, 7, 2, 3), Element::kF32);
  time("3x3 stem 3->32", Square(128, 224, 3, 32, 3, 2, 1), Element::kBF16);
  time("7x7 3->64", Square(128, 64, 3, 64, 7, 1, 3), Element::kBF16);
  time("5x5 3->64", Square(128, 64, 3, 64, 5, 1, 2), Element::kBF16);
  time("11x11 stem 3->64", Square(128, 224, 3, 64, 11, 4, 2), Element::kBF16);
  return failures != 0;
}
