# The sources that both GPU modules share, in this folder. Sets portable_handlers, compiled by the host compiler, and
# portable_kernels, compiled by the GPU's.
set(portable_handlers
    cast_operands.cc
    dense_forward.cc
    dense_dinput.cc
    dense_dweight.cc
    dweight.cc
    dweight_choice.cc
    knn_forward.cc
    knn_dinput.cc
    knn_dweight.cc
    knn_backward.cc
    tap_choice.cc
    tap_gemm.cc)
set(portable_kernels
    cast_operands.cu
    dweight_columns.cu
    dweight_dense.cu
    dweight_reduce.cu
    dweight_slots.cu
    hub_sums.cu
    tap_gemm_bf16_plain.cu
    tap_gemm_bf16_transposed.cu
    tap_gemm_f16_plain.cu
    tap_gemm_f16_transposed.cu)
list(TRANSFORM portable_handlers PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM portable_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
