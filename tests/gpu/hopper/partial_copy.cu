// Copies the last 4 bytes of an allocation by a cp.async of 16 bytes whose source size is 4, as readers of tables do
// (lib/hopper/tap_reader.h). The other 12 are not read and become zeros, which this program checks. Compute-sanitizer's
// memcheck reports a read of 16 bytes all the same: tables in problem.h therefore have room for them.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I lib tests/gpu/hopper/partial_copy.cu -o partial_copy
#include <cstdio>

#include "cuda_check.h"
#include "gpu/async_copy.h"
#include "hopper/ptx.h"

namespace {

__global__ void CopyLast(const int* from, int4* to) {
  __shared__ int4 block;
  block = {-1, -1, -1, -1};
  knnconv::hopper::CopyPart(knnconv::hopper::SharedAddress(&block), from, sizeof(int));
  knnconv::gpu::CommitCopies();
  knnconv::gpu::WaitForCopies<0>();
  *to = block;
}

}  // namespace

int main() {
  constexpr int kCount = 5;
  const int values[kCount] = {1, 2, 3, 4, 5};
  int* from;
  int4* to;
  int4 found;
  CHECK(cudaMalloc(&from, sizeof(values)));
  CHECK(cudaMalloc(&to, sizeof(int4)));
  CHECK(cudaMemcpy(from, values, sizeof(values), cudaMemcpyHostToDevice));
  CopyLast<<<1, 1>>>(from + kCount - 1, to);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(&found, to, sizeof(found), cudaMemcpyDeviceToHost));
  std::printf("%d %d %d %d\n", found.x, found.y, found.z, found.w);
  return found.x != 5 || found.y != 0 || found.z != 0 || found.w != 0;
}
