#define KNNCONV_ISA avx512
#define KNNCONV_ISA_NAME "avx512"
#include "cpu/isa/kernels.inc"
