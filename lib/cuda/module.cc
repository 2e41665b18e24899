// Bindings of the CUDA module: its handlers by target name and stage, and what it was built with.
#include <nanobind/nanobind.h>

#include "cuda/rules.h"
#include "gpu/registrations.h"

namespace nb = nanobind;

namespace {

nb::tuple Implementations() {
#ifdef KNNCONV_HOPPER
  return nb::make_tuple("wmma", "hopper");
#else
  return nb::make_tuple("wmma");
#endif
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "XLA FFI handlers of jax_knnconv for NVIDIA GPUs.";
  m.def("registrations", &knnconv::gpu::Registrations, "Target name -> stage -> handler capsule.");
  m.def("ffi_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
        "XLA FFI (major, minor) of the headers this module was built with.");
  knnconv::DefineRules(m);
  m.def("implementations", &Implementations, "The sets of kernels that this module holds.");
}
