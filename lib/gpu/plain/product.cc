#include "gpu/plain/product.h"

namespace knnconv::gpu::plain {

void AddProduct(float (&sum)[16][16], const float (&a)[16][16], const float (&b)[16][16]) {
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 16; ++j) sum[i][j] += a[i][k] * b[k][j];
    }
  }
}

}  // namespace knnconv::gpu::plain
