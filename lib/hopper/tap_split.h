// Tiles that the blocks of a cluster share: each multiplies a part of the steps, and adds up some of the columns.
//
//     block r of S:  sums_r = its steps, of S parts of the tile's list that differ by one step at most, or as
//                    tap_parts.h cuts two lists
//     column c of 64, for the block it belongs to:  sums_0[c] + sums_1[c] + ... in the order of blocks
//
// A node's list is one chain of products otherwise, and with few nodes the longest keeps one multiprocessor busy while
// others are idle. Sums travel through the cluster's shared memory, into stages of the ring of the block they go to:
// its producer keeps a stage free for each (column, other block), in this order, behind the last step of the tile, and
// tells the others where the first one is. A stage is full when all of its 32 KB have arrived. (The racecheck of
// compute-sanitizer does not follow what blocks tell each other so: tests/gpu/hopper/peer_arrival.cu.)
#pragma once

#include <cstdint>

#include "hopper/cluster.h"
#include "hopper/tap_pipe.h"

namespace knnconv::hopper {

// Of a tile's columns, 64 at a time, each belongs to a block of the cluster.
template <typename Shape>
struct SplitColumns {
  static constexpr int kWidth = 64, kCount = Shape::kColumns / kWidth, kOthers = Shape::kSplit - 1;
  static constexpr int kOfBlock = (kCount + Shape::kSplit - 1) / Shape::kSplit;  // the last may have fewer
  static constexpr int kSums = kWidth / 2;  // of a thread, in each of its blocks of rows
  static constexpr int kThreads = 128 * Shape::kConsumers, kBytes = Shape::kBlocks * kThreads * kSums * 4;
  static_assert(Shape::kColumns % kWidth == 0 && (Shape::kSplit - 1) * kOfBlock < kCount);
  static_assert(kBytes <= Shape::kStageBytes && kOfBlock * kOthers <= Shape::kStages);

  KNNCONV_HOST_DEVICE static constexpr int OwnerOf(int column) { return column / kOfBlock; }
  KNNCONV_HOST_DEVICE static constexpr int CountOf(int rank) {
    return rank < Shape::kSplit - 1 ? kOfBlock : kCount - (Shape::kSplit - 1) * kOfBlock;
  }
  // Which of the stages that its owner keeps free is for the sums of block `from`.
  KNNCONV_DEVICE static int PlaceOf(int column, int from) {
    const int owner = OwnerOf(column);
    return (column - owner * kOfBlock) * kOthers + (from < owner ? from : from - 1);
  }
};

// By one thread of the producer, behind the last step of a tile.
template <typename Shape>
KNNCONV_DEVICE void OpenStages(const Pipe<Shape>& pipe, int rank, uint32_t tiles_before,
                               typename Pipe<Shape>::Place* place) {
  using Columns = SplitColumns<Shape>;
  const int first = place->stage;
  for (int i = 0; i < Columns::CountOf(rank) * Columns::kOthers; ++i) {
    pipe.Empty(place->stage).Wait(place->parity ^ 1);
    pipe.Full(place->stage).ArriveExpecting(Columns::kBytes);
    place->Advance();
  }
  // The others have read where the stages of the tile before were.
  if (tiles_before > 0) pipe.Meeting().added.Wait((tiles_before - 1) % 2);
  for (int i = 1; i < Shape::kSplit; ++i) {
    const int other = (rank + i) % Shape::kSplit;
    StorePeer(PeerAddress(&pipe.Meeting().first_stage[rank], other), static_cast<uint32_t>(first));
    ArriveAtPeer(PeerAddress(&pipe.Meeting().open[rank], other));
  }
}

// Of a thread of the consuming warpgroups.
template <typename Shape>
class SplitSums {
  using Columns = SplitColumns<Shape>;
  using Sums = float[Shape::kBlocks][Shape::kColumns / 2];

 public:
  KNNCONV_DEVICE SplitSums(const Pipe<Shape>& pipe, int rank) : pipe_(pipe), rank_(rank) {}

  // Sends what belongs to other blocks, and adds theirs to the sums of this one's columns; `place` is behind the tile's
  // last step.
  KNNCONV_DEVICE void Add(Sums& sums, typename Pipe<Shape>::Place* place) {
#pragma unroll
    for (int column = 0; column < Columns::kCount; ++column) {
      if (Columns::OwnerOf(column) != rank_) Send(column, sums);
    }
#pragma unroll
    for (int column = 0; column < Columns::kCount; ++column) {
      if (Columns::OwnerOf(column) == rank_) Receive(column, sums, place);
    }
    if (threadIdx.x % 32 == 0) pipe_.Meeting().added.Arrive();
    parity_ ^= 1;
  }

 private:
  // A thread's sums of 64 columns lie four by four, those of all threads side by side.
  static constexpr int kFours = Shape::kBlocks * Columns::kSums / 4;
  KNNCONV_DEVICE static int Offset(int four) { return (four * Columns::kThreads + static_cast<int>(threadIdx.x)) * 16; }
  KNNCONV_DEVICE static float* Four(Sums& sums, int column, int four) {
    constexpr int kOfRows = Columns::kSums / 4;
    return sums[four / kOfRows] + column * Columns::kSums + four % kOfRows * 4;
  }

  KNNCONV_DEVICE void Send(int column, Sums& sums) const {
    const int owner = Columns::OwnerOf(column);
    pipe_.Meeting().open[owner].WaitForPeers(parity_);
    int stage = static_cast<int>(pipe_.Meeting().first_stage[owner]) + Columns::PlaceOf(column, rank_);
    if (stage >= Shape::kStages) stage -= Shape::kStages;
    const uint32_t to = PeerAddress(pipe_.A(stage), owner), full = PeerAddress(&pipe_.Full(stage), owner);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float* four = Four(sums, column, i);
      StorePeerCounted(to + Offset(i), four[0], four[1], four[2], four[3], full);
    }
  }

  KNNCONV_DEVICE void Receive(int column, Sums& sums, typename Pipe<Shape>::Place* place) const {
    const char* from[Columns::kOthers];
    int stage[Columns::kOthers];
#pragma unroll
    for (int i = 0; i < Columns::kOthers; ++i) {
      stage[i] = place->stage;
      from[i] = pipe_.A(stage[i]);
      pipe_.Full(stage[i]).WaitForPeers(place->parity);
      place->Advance();
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float* four = Four(sums, column, i);
      const float4 own = make_float4(four[0], four[1], four[2], four[3]);
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int block = 0; block < Shape::kSplit; ++block) {
        float4 part = own;
        // Others before this block, and after it.
        if (block < Columns::kOthers && block < rank_) part = At(from[block < Columns::kOthers ? block : 0], i);
        if (block > 0 && block > rank_) part = At(from[block > 0 ? block - 1 : 0], i);
        sum = block == 0 ? part : make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
      }
      four[0] = sum.x;
      four[1] = sum.y;
      four[2] = sum.z;
      four[3] = sum.w;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Columns::kOthers; ++i) {
      if (threadIdx.x % 32 == 0) pipe_.Empty(stage[i]).Arrive();
    }
  }

  KNNCONV_DEVICE static float4 At(const char* stage, int four) {
    return *reinterpret_cast<const float4*>(stage + Offset(four));
  }

  const Pipe<Shape>& pipe_;
  const int rank_;
  uint32_t parity_ = 0;
};

}  // namespace knnconv::hopper
