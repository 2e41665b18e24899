// What Hopper's checks share: calls that must succeed, and times of calls replayed from a graph.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpu/status.h"

#define CHECK(call)                                                                       \
  do {                                                                                    \
    if (const cudaError_t code = (call); code != cudaSuccess) {                           \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code)); \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (0)

namespace check {

inline void Check(const knnconv::gpu::Status& status) {
  if (status.ok()) return;
  std::printf("%s:%d %s: %s\n", status.file, status.line, status.call, cudaGetErrorString(status.code));
  std::exit(1);
}

// The median of what `launch` takes of the stream, after some that warm it up.
template <typename Launch>
double MedianMilliseconds(cudaStream_t stream, int warm_ups, int rounds, Launch launch) {
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<float> times;
  for (int i = 0; i < warm_ups + rounds; ++i) {
    CHECK(cudaEventRecord(from, stream));
    launch();
    CHECK(cudaEventRecord(to, stream));
    CHECK(cudaEventSynchronize(to));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, from, to));
    if (i >= warm_ups) times.push_back(ms);
  }
  CHECK(cudaEventDestroy(from));
  CHECK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Milliseconds of one of `calls` calls, `call(i)` each, in a graph.
template <typename Call>
double GraphMilliseconds(cudaStream_t stream, int calls, Call call) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  const double ms = MedianMilliseconds(stream, 4, 11, [&] { CHECK(cudaGraphLaunch(executable, stream)); });
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  return ms / calls;
}

}  // namespace check
