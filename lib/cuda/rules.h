// Python's view of the rules by which launchers choose kernels: plain functions of sizes, types and a device's
// description. They need neither a GPU nor a driver.
#pragma once

#include <nanobind/nanobind.h>

namespace knnconv {

void DefineRules(nanobind::module_& m);

}  // namespace knnconv
