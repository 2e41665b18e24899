#define KNNCONV_ISA plain
#define KNNCONV_ISA_NAME "plain"
#include "cpu/isa/kernels.inc"
