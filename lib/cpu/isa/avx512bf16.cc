#define KNNCONV_ISA avx512bf16
#define KNNCONV_ISA_NAME "avx512bf16"
#include "cpu/isa/kernels.inc"
