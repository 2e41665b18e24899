// Runs Hopper's TapGemm by itself: values against one thread a result in double, then times of the shapes that matter.
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/check.cu
//         lib/hopper/{tap_gemm,sample_[bf]}*.cu lib/hopper/{tap_gemm,tap_choice,pixel_classes,tensor_map}.cc
//         lib/hopper/sample{,_plan}.cc lib/gpu/hub_sums.cu -o check
//     check [all|values|few|times] [names of cases] [tile=128x64 "tile=split 128x128" ...]
//     check random seed count
//
// `few` are values of one type in the narrowest tile of each kind, for compute-sanitizer. Values may be of named tiles
// alone.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gemm_values.h"
#include "gpu/hub_sums.h"
#include "hopper/sample_plan.h"
#include "hopper/tap_gemm.h"
#include "random_cases.h"

namespace {

using check::Check;
using knnconv::hopper::Source;
using knnconv::hopper::TapForm;
using knnconv::hopper::TileForm;

cudaStream_t stream;

knnconv::gpu::Device card;

bool Choose(const TapGemm& gemm, TapForm* form) {
  return knnconv::hopper::ChooseForm(gemm, card, /*forced=*/true, form);
}

void Run(const TapGemm& gemm, const TileForm& tile) {
  TapForm form;
  Choose(gemm, &form);
  form.tile = tile;
  Check(knnconv::hopper::RunTapGemm({stream, 0, false}, gemm, card, form));
}

void RunHubs(const TapGemm& gemm, float* partials) {
  Check(knnconv::gpu::RunHubSums({stream, 0, false}, gemm, gemm.table.taps, partials));
}

double Time(Problem& p, const TileForm& form, bool hubs = false) {
  Run(p.gemm, form);
  const size_t copies = p.sources.size();
  return check::GraphMilliseconds(stream, 8, [&](int i) {
    TapGemm gemm = p.gemm;
    gemm.source = p.sources[i % copies];
    gemm.out = p.outs[i % copies];
    Run(gemm, form);
    if (hubs) RunHubs(gemm, p.partials);
  });
}

const TileForm kForms[] = {
    {Source::kBoxes, 128, 64},  {Source::kBoxes, 256, 64},  {Source::kBoxes, 128, 128},
    {Source::kBoxes, 256, 128}, {Source::kBoxes, 128, 192}, {Source::kBoxes, 128, 256},
    {Source::kBoxes, 192, 256}, {Source::kBoxes, 128, 96},
    {Source::kBoxes, 128, 128, false, 2}, {Source::kBoxes, 128, 256, false, 2},
    {Source::kBoxes, 128, 128, false, 2, 2}, {Source::kBoxes, 128, 192, false, 2, 2},
    {Source::kBoxes, 128, 256, false, 2, 2},
    {Source::kRows, 128, 64},   {Source::kRows, 128, 128},  {Source::kRows, 128, 256},
    {Source::kExtra, 128, 64},  {Source::kExtra, 128, 128},
    {Source::kBoxes, 128, 64, true}, {Source::kSample, 64, 64},
};

bool IsNarrowest(const TileForm& form) {
  return (form.rows <= 128 && form.columns == 64) || knnconv::hopper::IsOfPixels(form);
}

// Whether a problem has tiles of this form.
bool Has(const Problem& p, const TileForm& form) {
  if (form.source == Source::kSample) return knnconv::hopper::FitsSample(p.gemm);
  if (form.resident && !knnconv::hopper::CanStay(p.gemm)) return false;
  if (form.split > 1 && !knnconv::hopper::CanSplit(p.gemm, form)) return false;
  if (form.columns == 96 && !knnconv::hopper::HasTile96(p.gemm)) return false;
  if (knnconv::hopper::IsOfPixels(form) && p.c.kind != Taps::kWindow) return false;
  if (form.source == Source::kBoxes) return true;
  return p.c.kind != Taps::kWindow && (p.c.kind == Taps::kSources) == (form.source == Source::kExtra);
}

std::vector<char> Bytes(const Problem& p) {
  std::vector<char> bytes(p.out_elements * knnconv::gpu::ElementBytes(p.c.out_type));
  CHECK(cudaMemcpy(bytes.data(), p.outs[0], bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

const char* Name(const TileForm& form) {
  if (form.tiles > 1) return "pair ";
  if (form.split > 1) return "split ";
  if (form.source == Source::kExtra) return "extra ";
  if (form.source == Source::kSample) return "sample ";
  return form.source == Source::kRows ? "rows " : form.resident ? "resident " : "";
}

// What a case is, and the tile it runs in.
void Tell(const Case& c, const TileForm& form) {
  std::printf("  in %s, type %d to %d, tile %s%d x %d\n", c.name.c_str(), static_cast<int>(c.type),
              static_cast<int>(c.out_type), Name(form), form.rows, form.columns);
  std::printf("  kind %d%s, batch %d, %d to %d, %d of %d, %d taps, %d slots, holes %g, %d groups (%d %d %d)\n",
              static_cast<int>(c.kind), c.transposed ? " transposed" : "", c.batch, c.depth, c.columns, c.nodes,
              c.source_rows, c.taps, c.slots, c.holes, c.groups, c.own_source, c.own_weight, c.own_table);
  if (c.kind != Taps::kWindow) return;
  std::printf("  %d x %d to %d x %d, kernel %d x %d, stride %d x %d, padding %d x %d, dilation %d x %d\n", c.size[0],
              c.size[1], c.out[0], c.out[1], c.kernel[0], c.kernel[1], c.stride[0], c.stride[1], c.padding[0],
              c.padding[1], c.dilation[0], c.dilation[1]);
}

// Runs a case and waits for it.
void RunAndWait(const Problem& p, const TileForm& form) {
  Run(p.gemm, form);
  const cudaError_t ran = cudaStreamSynchronize(stream);
  if (ran == cudaSuccess) return;
  std::printf("FAILED: %s\n", cudaGetErrorString(ran));
  Tell(p.c, form);
  std::exit(1);
}

std::vector<Case> Random(unsigned seed, int count) {
  RandomCases random(seed);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) cases.push_back(random.Next());
  return cases;
}

// As arguments name it.
std::string Argument(const TileForm& form) {
  return std::string("tile=") + Name(form) + std::to_string(form.rows) + "x" + std::to_string(form.columns);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Check(knnconv::gpu::GetDevice(0, &card));
  const std::string what = argc > 1 ? argv[1] : "all";
  const bool few = what == "few";
  int failures = 0, runs = 0;
  const bool random = what == "random" && argc == 4;
  std::vector<Case> cases;
  if (random) {
    cases = Random(std::stoul(argv[2]), std::stoi(argv[3]));
  } else if (what != "times") {
    cases = ValueCases();
  }
  const std::vector<std::string> words(argv + std::min(argc, random ? 4 : 2), argv + argc);
  const auto is_tile = [](const std::string& word) { return word.rfind("tile=", 0) == 0; };
  const auto named = [&](const std::string& word) { return std::count(words.begin(), words.end(), word) > 0; };
  const auto tiles_named = std::count_if(words.begin(), words.end(), is_tile);
  const bool all_cases = tiles_named == static_cast<std::ptrdiff_t>(words.size()), all_tiles = tiles_named == 0;
  const auto wanted = [&](const Case& c) { return all_cases || named(c.name); };
  const auto wanted_tile = [&](const TileForm& form) {
    return all_tiles ? !few || IsNarrowest(form) : named(Argument(form));
  };
  for (const Case& c : cases) {
    if (!wanted(c) || (few && (c.type != Element::kBF16 || c.out_type != c.type))) continue;
    Problem p = Make(c, 1);
    TapForm chosen;
    const bool takes = Choose(p.gemm, &chosen);
    if (!takes && !random) std::printf("%s: not taken\n", c.name.c_str());
    for (const TileForm& form : kForms) {
      if (!takes || !Has(p, form) || !wanted_tile(form)) continue;
      CHECK(cudaMemset(p.outs[0], 0xff, p.out_elements * 4 + 64));
      CHECK(cudaDeviceSynchronize());  // the stream does not wait for it
      RunAndWait(p, form);
      ++runs;
      const std::vector<char> bytes = Bytes(p);
      const bool right = IsRight(p, size_t{1} << 40);
      RunAndWait(p, form);
      const bool same = Bytes(p) == bytes;
      if (!right || !same) {
        ++failures;
        if (!same) std::printf("  OTHER BITS in the second run\n");
        Tell(c, form);
      }
    }
    if (takes && all_tiles && c.kind == Taps::kSources) {  // all rows
      const TileForm tile = few ? TileForm{Source::kBoxes, 128, 64} : chosen.tile;
      Run(p.gemm, tile);
      RunHubs(p.gemm, p.partials);
      CHECK(cudaStreamSynchronize(stream));
      ++runs;
      if (!IsRight(p, size_t{1} << 40, /*hubs=*/true)) {
        ++failures;
        std::printf("  in %s, type %d to %d, with hubs\n", c.name.c_str(), static_cast<int>(c.type),
                    static_cast<int>(c.out_type));
      }
    }
    Free(&p);
  }
  std::printf("%d of %d runs wrong\n", failures, runs);
  if (few || random || what == "values") return failures != 0 || runs == 0;
  for (const Case& c : TimedCases()) {
    if (!wanted(c)) continue;
    Problem p = Make(c, 4);
    const double flops = 2.0 * c.batch * p.lists.source.size() * c.depth * c.columns;
    std::printf("%-14s", c.name.c_str());
    double best = 1e9;
    for (const TileForm& form : kForms) {
      if (form.columns > 64 && form.columns >= 2 * c.columns) continue;
      if (!Has(p, form) || (c.batch < 10 && c.kind != Taps::kWindow && form.source == Source::kBoxes)) continue;
      if (form.source != Source::kBoxes && form.source != Source::kSample && c.batch > 40) continue;
      const double ms = Time(p, form);
      best = std::min(best, ms);
      std::printf("  %s%dx%d %.4f", Name(form), form.rows, form.columns, ms);
      if (!IsRight(p, 500)) std::printf(" WRONG");
      std::fflush(stdout);
    }
    TapForm chosen;
    Choose(p.gemm, &chosen);
    const double automatic = Time(p, chosen.tile);
    if (c.kind == Taps::kSources) std::printf("  and hubs %.4f", Time(p, chosen.tile, /*hubs=*/true));
    std::printf("  auto %.4f  best %.4f = %.0f TFLOP/s\n", automatic, best, flops / best / 1e9);
    Free(&p);
  }
  return failures != 0;
}
