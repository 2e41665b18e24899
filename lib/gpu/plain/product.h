// The product of two 16x16 tiles, in a source of its own so that it is optimized and free of sanitizers' checks.
#pragma once

namespace knnconv::gpu::plain {

// sum += a @ b
void AddProduct(float (&sum)[16][16], const float (&a)[16][16], const float (&b)[16][16]);

}  // namespace knnconv::gpu::plain
