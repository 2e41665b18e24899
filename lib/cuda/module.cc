// Bindings of the CUDA module: its handlers by target name and stage, and what it was built with.
#include <nanobind/nanobind.h>

#include "gpu/handlers.h"

namespace nb = nanobind;

namespace {

template <typename Handler>
nb::capsule Capsule(Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

template <typename Handler>
nb::dict Stages(Handler* initialize, Handler* execute) {
  nb::dict stages;
  stages["initialize"] = Capsule(initialize);
  stages["execute"] = Capsule(execute);
  return stages;
}

nb::dict Registrations() {
  nb::dict targets;
#define KNNCONV_REGISTER(symbol, operation) \
  targets["jax_knnconv_" #operation "_v1"] = Stages(knnconv::gpu::symbol##Initialize, knnconv::gpu::symbol);
  KNNCONV_FOR_EACH_HANDLER(KNNCONV_REGISTER)
#undef KNNCONV_REGISTER
  return targets;
}

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
  m.def("registrations", &Registrations, "Target name -> stage -> handler capsule.");
  m.def("ffi_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
        "XLA FFI (major, minor) of the headers this module was built with.");
  m.def("implementations", &Implementations, "The sets of kernels that this module holds.");
}
