// Runs Hopper's dinput of stems by itself, beside that of every architecture: values against one thread a result in
// double, then times of the shapes that matter.
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/check_stem.cu
//         lib/hopper/stem_dinput*.c* lib/gpu/stem_dinput*.c* lib/gpu/stem_order.cu -o check_stem
//     check_stem [all|values|few|times] [names of cases]
//     check_stem random seed count
//
// `few` are values of small batches, for compute-sanitizer.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gemm_values.h"
#include "hopper/stem_dinput.h"
#include "stem_cases.h"

namespace {

namespace gpu = knnconv::gpu;
namespace hopper = knnconv::hopper;
using check::Check;

constexpr size_t kRoomBehind = 64;  // of results, which no kernel writes

cudaStream_t stream;

gpu::Device card;

const char* NameOf(const gpu::StemDinputPlan&) { return "every architecture's"; }
const char* NameOf(const hopper::StemDinputPlan&) { return "Hopper's"; }

void Tell(const Case& c, const char* kernel) {
  std::printf("  in %s, %s kernel, type %d to %d\n", c.name.c_str(), kernel, static_cast<int>(c.type),
              static_cast<int>(c.out_type));
  std::printf("  batch %d, %d deep, %d of %d, %d taps, %d slots, %d groups (%d %d %d)\n", c.batch, c.depth, c.nodes,
              c.source_rows, c.taps, c.slots, c.groups, c.own_source, c.own_weight, c.own_table);
}

// Gives the gemm the workspace that its order of taps needs, and no more. False if the kernels do not take it.
template <typename Plan>
bool Prepare(TapGemm* gemm, Plan* plan) {
  constexpr int64_t kEnough = int64_t{1} << 30;
  gemm->workspace = nullptr;
  gemm->workspace_bytes = kEnough;
  if (!ChooseStem(*gemm, card, /*forced=*/true, plan)) return false;
  const int64_t groups = gemm->groups.count();
  const int64_t lists = groups * plan->stretches * plan->blocks * (gpu::kOrderedSources / 2);
  gemm->workspace_bytes = lists * (sizeof(*plan->firsts) + sizeof(*plan->rests)) +
                          groups * plan->group_quads * sizeof(*plan->quads);
  CHECK(cudaMalloc(&gemm->workspace, gemm->workspace_bytes));
  return ChooseStem(*gemm, card, /*forced=*/true, plan);
}

// The results and the room behind them, of a run that finds nothing of the last one.
template <typename Plan>
std::vector<char> Run(const Problem& p, const TapGemm& gemm, const Plan& plan) {
  std::vector<char> bytes(p.out_elements * gpu::ElementBytes(p.c.out_type) + kRoomBehind);
  CHECK(cudaMemset(gemm.out, 0xff, bytes.size()));
  CHECK(cudaMemset(gemm.workspace, 0xff, gemm.workspace_bytes));
  CHECK(cudaDeviceSynchronize());  // the stream does not wait for it
  Check(RunStemDinput({stream, 0, false}, gemm, card, plan));
  if (const cudaError_t ran = cudaStreamSynchronize(stream); ran != cudaSuccess) {
    std::printf("FAILED: %s\n", cudaGetErrorString(ran));
    Tell(p.c, NameOf(plan));
    std::exit(1);
  }
  CHECK(cudaMemcpy(bytes.data(), gemm.out, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

struct Counts {
  int runs = 0, failures = 0;
};

// Whether a kernel takes the case.
template <typename Plan>
bool CheckKernel(const Problem& p, Counts* counts) {
  TapGemm gemm = p.gemm;
  Plan plan;
  if (!Prepare(&gemm, &plan)) return false;
  const std::vector<char> bytes = Run(p, gemm, plan);
  const bool right = IsRight(p, size_t{1} << 40, /*hubs=*/true), same = Run(p, gemm, plan) == bytes;
  const bool within = std::count(bytes.end() - kRoomBehind, bytes.end(), '\xff') == kRoomBehind;
  if (!same) std::printf("  OTHER BITS in the second run\n");
  if (!within) std::printf("  WRITTEN BEHIND the results\n");
  if (!right || !same || !within) Tell(p.c, NameOf(plan));
  ++counts->runs;
  counts->failures += !right || !same || !within;
  CHECK(cudaFree(gemm.workspace));
  return true;
}

Counts CheckValues(const std::vector<Case>& cases, bool all_taken) {
  Counts hoppers, others;
  for (const Case& c : cases) {
    Problem p = Make(c, 1);
    const bool taken = CheckKernel<hopper::StemDinputPlan>(p, &hoppers);
    CheckKernel<gpu::StemDinputPlan>(p, &others);
    Free(&p);
    if (taken || !all_taken) continue;
    std::printf("%s: not taken\n", c.name.c_str());
    ++hoppers.failures;
  }
  std::printf("%d of %d runs wrong of Hopper's kernel, %d of %d of every architecture's\n", hoppers.failures,
              hoppers.runs, others.failures, others.runs);
  return {hoppers.runs, hoppers.failures + others.failures};
}

template <typename Plan>
void Time(const Problem& p) {
  TapGemm gemm = p.gemm;
  Plan plan;
  if (!Prepare(&gemm, &plan)) return;
  const auto call = [&](int i) {
    gemm.source = p.sources[i % p.sources.size()];
    gemm.out = p.outs[i % p.outs.size()];
    Check(RunStemDinput({stream, 0, false}, gemm, card, plan));
  };
  call(0);
  std::printf("  %s %.4f", NameOf(plan), check::GraphMilliseconds(stream, 24, call));
  CHECK(cudaFree(gemm.workspace));
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Check(gpu::GetDevice(0, &card));
  const std::string what = argc > 1 ? argv[1] : "all";
  const std::vector<std::string> names(argv + std::min(argc, 2), argv + argc);
  if (what == "random" && argc == 4) {
    RandomStems random(std::stoul(argv[2]));
    std::vector<Case> cases;
    for (int i = 0; i < std::stoi(argv[3]); ++i) cases.push_back(random.Next());
    const Counts counts = CheckValues(cases, /*all_taken=*/false);
    return counts.failures != 0 || counts.runs == 0;
  }
  const auto wanted = [&](const Case& c) {
    return names.empty() || std::find(names.begin(), names.end(), c.name) != names.end();
  };
  int failures = 0;
  if (what != "times") {
    std::vector<Case> cases;
    for (Case c : StemCases()) {
      if (!wanted(c)) continue;
      if (what == "few") c.batch = std::min(c.batch, 2);
      cases.push_back(c);
    }
    const Counts counts = CheckValues(cases, /*all_taken=*/true);
    failures = counts.failures + (counts.runs == 0) + (what == "few" && cases.size() < names.size());
  }
  if (what != "times" && what != "all") return failures != 0;
  for (const Case& c : TimedStems()) {
    if (!wanted(c)) continue;
    Problem p = Make(c, 4);
    std::printf("%s:", c.name.c_str());
    for (int turn = 0; turn < 3; ++turn) {
      Time<gpu::StemDinputPlan>(p);
      Time<hopper::StemDinputPlan>(p);
    }
    std::printf("\n");
    Free(&p);
  }
  return failures != 0;
}
