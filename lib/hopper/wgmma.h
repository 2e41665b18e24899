// Products of a warpgroup (wgmma): 64 rows, kN columns, 16 deep, both operands in shared memory, sums in registers.
//
// Tiles are as TMA writes them with the 128-byte swizzle: lines of 128 bytes (64 elements), 8 lines a group of 1024
// bytes, the start of a tile a multiple of 1024 bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/vendor.h"
#include "hopper/ptx.h"

namespace knnconv::hopper {

// Which dimension lies along a tile's lines: the products' depth (kK), or rows of A and columns of B (kMN).
enum class Major : int { kK = 0, kMN = 1 };

// From one operand's slice of 16 in depth to the next, in units of a descriptor's address (16 bytes).
template <Major kMajor>
inline constexpr uint64_t kDepthAdvance = kMajor == Major::kK ? 32 / 16 : 16 * 128 / 16;

// Describes the tile at `tile`. kK: lines are rows (columns of B), group after group. kMN: lines are depth; a block of
// 64 rows (columns of B) holds `block_bytes` / 128 of them, and the next 64 follow behind it.
template <Major kMajor>
KNNCONV_DEVICE uint64_t Describe(const void* tile, int block_bytes = 64 * 128) {
  const uint64_t address = (SharedAddress(tile) & 0x3ffff) >> 4;
  const uint64_t between_blocks = kMajor == Major::kK ? 1 : static_cast<uint64_t>(block_bytes >> 4);
  constexpr uint64_t kBetweenGroups = 1024 >> 4, kSwizzle128 = 1;
  return address | between_blocks << 16 | kBetweenGroups << 32 | kSwizzle128 << 62;
}

// Describes a tile without swizzle: cores of 8 rows (columns of B) of 8 in depth, each 128 bytes that follow each
// other. kK: a core's lines of 16 bytes are its rows; kMN: its depth. The next 8 in depth lie `depth_bytes` further on,
// the next 8 rows `row_bytes`, both multiples of 16 as the tile's address is.
KNNCONV_DEVICE uint64_t DescribeCores(const void* tile, int depth_bytes, int row_bytes) {
  const uint64_t address = (SharedAddress(tile) & 0x3ffff) >> 4;
  return address | static_cast<uint64_t>(depth_bytes >> 4) << 16 | static_cast<uint64_t>(row_bytes >> 4) << 32;
}

// Describes a tile whose lines are `swizzle` bytes (128, 64 or 32), swizzled by their address as the copy engine writes
// them. The tile may start at any line; after 8 of them, the next lie `group_bytes` further on. kMN: what follows a
// line's end lies `block_bytes` further on.
KNNCONV_DEVICE uint64_t DescribeLines(const void* tile, int swizzle, int group_bytes, int block_bytes = 16) {
  const uint64_t address = (SharedAddress(tile) & 0x3ffff) >> 4, layout = swizzle == 32 ? 3 : swizzle == 64 ? 2 : 1;
  return address | static_cast<uint64_t>(block_bytes >> 4) << 16 | static_cast<uint64_t>(group_bytes >> 4) << 32 |
         layout << 62;
}

// The first lane's lower half of `value`, which the compiler sees to be the same in a warp: descriptions made from it
// stay in uniform registers.
KNNCONV_DEVICE uint32_t Uniform(uint64_t value) { return __shfl_sync(kAllLanes, static_cast<uint32_t>(value), 0); }

// A description of its halves. What moves a tile is added to the lower one.
KNNCONV_DEVICE uint64_t Join(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

// Before the first product, and when registers of the sums were written since the last one.
KNNCONV_DEVICE void FenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

KNNCONV_DEVICE void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last kPending committed groups are done.
template <int kPending>
KNNCONV_DEVICE void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Waits for all products, of which the last ones have their rows in registers, `words`. The compiler may give these
// away as soon as products have been asked for, while they are still read: so a store that never happens reads them
// behind the wait. `positive` is a number above 0 that the compiler does not know.
template <int kCount>
KNNCONV_DEVICE void WaitForProducts(const uint32_t (&words)[kCount][4], int positive) {
  WaitForProducts<0>();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"r"(positive),
        "r"(words[i][0]), "r"(words[i][1]), "r"(words[i][2]), "r"(words[i][3])
        : "memory");
  }
}

// Keeps the compiler from reading sums before a wait, or writing them after a fence.
template <int kCount>
KNNCONV_DEVICE void PinSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define KNNCONV_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KNNCONV_SUMS_8(i) KNNCONV_SUMS_4(i), KNNCONV_SUMS_4(i + 4)
#define KNNCONV_SUMS_12(i) KNNCONV_SUMS_8(i), KNNCONV_SUMS_4(i + 8)
#define KNNCONV_SUMS_16(i) KNNCONV_SUMS_8(i), KNNCONV_SUMS_8(i + 8)
#define KNNCONV_SUMS_24(i) KNNCONV_SUMS_16(i), KNNCONV_SUMS_8(i + 16)
#define KNNCONV_SUMS_28(i) KNNCONV_SUMS_24(i), KNNCONV_SUMS_4(i + 24)
#define KNNCONV_SUMS_32(i) KNNCONV_SUMS_16(i), KNNCONV_SUMS_16(i + 16)
#define KNNCONV_SUMS_48(i) KNNCONV_SUMS_32(i), KNNCONV_SUMS_8(i + 32), KNNCONV_SUMS_8(i + 40)
#define KNNCONV_SUMS_64(i) KNNCONV_SUMS_32(i), KNNCONV_SUMS_32(i + 32)
#define KNNCONV_SUMS_96(i) KNNCONV_SUMS_64(i), KNNCONV_SUMS_32(i + 64)
#define KNNCONV_SUMS_128(i) KNNCONV_SUMS_64(i), KNNCONV_SUMS_64(i + 64)
#define KNNCONV_LIST_4 "%0, %1, %2, %3"
#define KNNCONV_LIST_8 KNNCONV_LIST_4 ", %4, %5, %6, %7"
#define KNNCONV_LIST_12 KNNCONV_LIST_8 ", %8, %9, %10, %11"
#define KNNCONV_LIST_16 KNNCONV_LIST_12 ", %12, %13, %14, %15"
#define KNNCONV_LIST_24 KNNCONV_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KNNCONV_LIST_28 KNNCONV_LIST_24 ", %24, %25, %26, %27"
#define KNNCONV_LIST_32 KNNCONV_LIST_28 ", %28, %29, %30, %31"
#define KNNCONV_LIST_48 KNNCONV_LIST_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KNNCONV_LIST_64 KNNCONV_LIST_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KNNCONV_LIST_96 KNNCONV_LIST_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KNNCONV_LIST_128 KNNCONV_LIST_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// N columns, TYPE, N / 2 sums, and the numbers of the operands behind them.
#define KNNCONV_WGMMA(N, TYPE, SUMS, A, B, ADD, MAJOR_A, MAJOR_B)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                                               \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" KNNCONV_LIST_##SUMS          \
               "}, %" #A ", %" #B ", p, 1, 1, %" #MAJOR_A ", %" #MAJOR_B ";\n}"                                        \
               : KNNCONV_SUMS_##SUMS(0)                                                                                \
               : "l"(a), "l"(b), "r"(add), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)))
#define KNNCONV_WGMMA_OF(N, SUMS, A, B, ADD, MAJOR_A, MAJOR_B)          \
  if constexpr (kN == N) {                                              \
    if constexpr (std::is_same_v<T, gpu::Half>) {                       \
      KNNCONV_WGMMA(N, "f16", SUMS, A, B, ADD, MAJOR_A, MAJOR_B);       \
    } else {                                                            \
      KNNCONV_WGMMA(N, "bf16", SUMS, A, B, ADD, MAJOR_A, MAJOR_B);      \
    }                                                                   \
  }

// d = A @ B + (accumulate ? d : 0), asynchronously. Thread t of the warpgroup holds of row
// 16 * (t / 32) + 8 * h + t % 32 / 4 the columns 8 * j + 2 * (t % 4) + {0, 1} in d[4 * j + 2 * h + {0, 1}].
template <typename T, int kN, Major kMajorA, Major kMajorB>
KNNCONV_DEVICE void MultiplyAdd(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate = true) {
  static_assert(kN == 8 || kN == 16 || kN == 24 || kN == 32 || kN == 48 || kN == 56 || kN == 64 || kN == 96 ||
                    kN == 128 || kN == 192 || kN == 256, "no such product");
  const int add = accumulate ? 1 : 0;
  KNNCONV_WGMMA_OF(8, 4, 4, 5, 6, 7, 8)
  KNNCONV_WGMMA_OF(16, 8, 8, 9, 10, 11, 12)
  KNNCONV_WGMMA_OF(24, 12, 12, 13, 14, 15, 16)
  KNNCONV_WGMMA_OF(32, 16, 16, 17, 18, 19, 20)
  KNNCONV_WGMMA_OF(48, 24, 24, 25, 26, 27, 28)
  KNNCONV_WGMMA_OF(56, 28, 28, 29, 30, 31, 32)
  KNNCONV_WGMMA_OF(64, 32, 32, 33, 34, 35, 36)
  KNNCONV_WGMMA_OF(96, 48, 48, 49, 50, 51, 52)
  KNNCONV_WGMMA_OF(128, 64, 64, 65, 66, 67, 68)
  KNNCONV_WGMMA_OF(192, 96, 96, 97, 98, 99, 100)
  KNNCONV_WGMMA_OF(256, 128, 128, 129, 130, 131, 132)
}

// The same with A [64, 16] in registers, which stay as they are until the product is done: thread t holds of row
// 16 * (t / 32) + 8 * h + t % 32 / 4 the columns 8 * i + 2 * (t % 4) + {0, 1} in a[2 * i + h].
#define KNNCONV_WGMMA_A(N, TYPE, SUMS, A0, A1, A2, A3, B, ADD, MAJOR_B)                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                                               \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" KNNCONV_LIST_##SUMS          \
               "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #MAJOR_B ";\n}"                      \
               : KNNCONV_SUMS_##SUMS(0)                                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1), "n"(static_cast<int>(kMajorB)))

template <typename T, int kN, Major kMajorB>
KNNCONV_DEVICE void MultiplyAdd(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kN == 64, "no such product");
  if constexpr (std::is_same_v<T, gpu::Half>) {
    KNNCONV_WGMMA_A(64, "f16", 32, 32, 33, 34, 35, 36, 37, 38);
  } else {
    KNNCONV_WGMMA_A(64, "bf16", 32, 32, 33, 34, 35, 36, 37, 38);
  }
}

#undef KNNCONV_WGMMA_A
#undef KNNCONV_WGMMA_OF
#undef KNNCONV_WGMMA
#undef KNNCONV_LIST_4
#undef KNNCONV_LIST_8
#undef KNNCONV_LIST_12
#undef KNNCONV_LIST_16
#undef KNNCONV_LIST_24
#undef KNNCONV_LIST_28
#undef KNNCONV_SUMS_12
#undef KNNCONV_SUMS_16
#undef KNNCONV_SUMS_24
#undef KNNCONV_SUMS_28
#undef KNNCONV_LIST_32
#undef KNNCONV_SUMS_32
#undef KNNCONV_LIST_48
#undef KNNCONV_SUMS_48
#undef KNNCONV_LIST_64
#undef KNNCONV_SUMS_64
#undef KNNCONV_LIST_96
#undef KNNCONV_SUMS_96
#undef KNNCONV_LIST_128
#undef KNNCONV_SUMS_128
#undef KNNCONV_SUMS_8
#undef KNNCONV_SUMS_4

}  // namespace knnconv::hopper
