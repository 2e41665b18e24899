// A GPU module's handlers as Python takes them: by target name and stage.
#pragma once

#include <nanobind/nanobind.h>

#include "gpu/handlers.h"

namespace knnconv::gpu {

template <typename Handler>
nanobind::capsule Capsule(Handler* handler) {
  return nanobind::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

template <typename Handler>
nanobind::dict Stages(Handler* initialize, Handler* execute) {
  nanobind::dict stages;
  stages["initialize"] = Capsule(initialize);
  stages["execute"] = Capsule(execute);
  return stages;
}

inline nanobind::dict Registrations() {
  nanobind::dict targets;
#define KNNCONV_REGISTER(symbol, operation) \
  targets["jax_knnconv_" #operation "_v1"] = Stages(symbol##Initialize, symbol);
  KNNCONV_FOR_EACH_HANDLER(KNNCONV_REGISTER)
#undef KNNCONV_REGISTER
  return targets;
}

}  // namespace knnconv::gpu
