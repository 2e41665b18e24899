// Chooses the instruction set once per process.
#include <cstdlib>
#include <cstring>

#include "cpu/isa/isa.h"

namespace knnconv::cpu {

namespace plain { extern const Isa kIsa; }
#ifdef KNNCONV_X86
namespace avx2 { extern const Isa kIsa; }
namespace avx512 { extern const Isa kIsa; }
#endif

namespace {

bool Allows(const char* limit, const char* name) { return limit == nullptr || std::strcmp(limit, name) == 0; }

const Isa& Choose() {
  const char* limit = std::getenv("JAX_KNNCONV_CPU_ISA");
#ifdef KNNCONV_X86
  if (Allows(limit, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512::kIsa;
  }
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2 && (Allows(limit, "avx2") || Allows(limit, "avx512"))) return avx2::kIsa;
#endif
  return plain::kIsa;
}

}  // namespace

const Isa& ActiveIsa() {
  static const Isa& isa = Choose();
  return isa;
}

}  // namespace knnconv::cpu
