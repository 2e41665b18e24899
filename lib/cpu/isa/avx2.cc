#define KNNCONV_ISA avx2
#define KNNCONV_ISA_NAME "avx2"
#include "cpu/isa/kernels.inc"
