// Sums of a tile's extra lines, in shared memory: some threads add to them, others take them.
//
// A lane of either has four of each 16 columns of a row, as products lie in registers (wgmma.h): 2 * (lane % 4) +
// {0, 1, 8, 9}. They lie together, 16 bytes. Of odd rows, 64 bytes change places with the next 64, so that the parts of
// an even row and an odd one, which eight lanes read or write at once, meet all banks.
#pragma once

#include <cstdint>

#include "hopper/ptx.h"

namespace knnconv::hopper {

template <int kColumns>
class SharedSums {
  static constexpr int kFours = kColumns / 16, kPitch = kColumns * static_cast<int>(sizeof(float));

 public:
  static constexpr int BytesOf(int rows) { return rows * kPitch; }

  KNNCONV_DEVICE explicit SharedSums(const char* sums) : lane_at_(SharedAddress(sums) + threadIdx.x % 4 * 16) {}

  // Adds the lane's part of half kHalf of `products` to the row's.
  template <int kHalf>
  KNNCONV_DEVICE void AddHalf(int row, const float (&products)[kColumns / 2]) const {
    const RowPart part = PartOf(row);
    float4 fours[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) fours[i] = Load(part.At(i));
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float* const product = products + 8 * i + 2 * kHalf;
      Store(part.At(i), {fours[i].x + product[0], fours[i].y + product[1], fours[i].z + product[4],
                         fours[i].w + product[5]});
    }
  }

  // Adds the lane's parts of rows `row` and `row` + 8 to `sums`, and leaves zeros.
  KNNCONV_DEVICE void Take(int row, float (&sums)[kColumns / 2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const RowPart part = PartOf(row + 8 * h);
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 four = Load(part.At(i));
        Store(part.At(i), {0.0f, 0.0f, 0.0f, 0.0f});
        float* const sum = sums + 8 * i + 2 * h;
        sum[0] += four.x;
        sum[1] += four.y;
        sum[4] += four.z;
        sum[5] += four.w;
      }
    }
  }

 private:
  // Where the lane's part of a row is.
  struct RowPart {
    uint32_t even, odd;  // of 16 columns, an even number of times 16 from the first

    KNNCONV_DEVICE uint32_t At(int i) const { return (i % 2 == 0 ? even : odd) + 64 * i; }
  };

  KNNCONV_DEVICE RowPart PartOf(int row) const {
    const uint32_t at = lane_at_ + row * kPitch, shift = row % 2 * 64;
    return {at + shift, at - shift};
  }

  KNNCONV_DEVICE static float4 Load(uint32_t from) {
    const uint4 four = LoadShared(from);
    return {__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z), __uint_as_float(four.w)};
  }

  KNNCONV_DEVICE static void Store(uint32_t to, const float4& four) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(four.x), "f"(four.y), "f"(four.z),
                 "f"(four.w)
                 : "memory");
  }

  const uint32_t lane_at_;
};

}  // namespace knnconv::hopper
