// Bindings of the CPU module: its handlers by target name, and what it was built with.
#include <nanobind/nanobind.h>

#include "cpu/handlers.h"
#include "cpu/isa/isa.h"

namespace nb = nanobind;

namespace {

template <typename Handler>
nb::capsule Capsule(Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

nb::dict Registrations() {
  using namespace knnconv::cpu;  // NOLINT: eight names, one function
  nb::dict targets;
  targets["jax_knnconv_cast_operands_v1"] = Capsule(CastOperands);
  targets["jax_knnconv_dense_forward_v1"] = Capsule(DenseForward);
  targets["jax_knnconv_dense_dinput_v1"] = Capsule(DenseDinput);
  targets["jax_knnconv_dense_dweight_v1"] = Capsule(DenseDweight);
  targets["jax_knnconv_knn_forward_v1"] = Capsule(KnnForward);
  targets["jax_knnconv_knn_dinput_v1"] = Capsule(KnnDinput);
  targets["jax_knnconv_knn_dweight_v1"] = Capsule(KnnDweight);
  targets["jax_knnconv_knn_backward_v1"] = Capsule(KnnBackward);
  return targets;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "XLA FFI handlers of jax_knnconv for the CPU.";
  m.def("registrations", &Registrations, "Target name -> handler capsule.");
  m.def("ffi_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
        "XLA FFI (major, minor) of the headers this module was built with.");
  m.def("implementations", [] { return nb::make_tuple("cpu"); }, "The sets of kernels that this module holds.");
  m.def("isa", [] { return knnconv::cpu::ActiveIsa().name; }, "Instruction set the inner loops run with.");
}
