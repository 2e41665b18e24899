// Chooses the instruction set once per process.
#include <cstdlib>
#include <cstring>

#include "cpu/isa/isa.h"

namespace knnconv::cpu {

namespace plain { extern const Isa kIsa; }
#ifdef KNNCONV_X86
namespace avx2 { extern const Isa kIsa; }
namespace avx512 { extern const Isa kIsa; }
namespace avx512bf16 { extern const Isa kIsa; }
#endif

namespace {

// Narrowest first.
const Isa* Widest(const char* limit) {
  const Isa* widest = &plain::kIsa;
  auto offer = [&](const Isa& isa, bool supported) {
    const bool reached = limit != nullptr && std::strcmp(limit, widest->name) == 0;
    if (supported && !reached) widest = &isa;
  };
#ifdef KNNCONV_X86
  offer(avx2::kIsa,
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"));
  offer(avx512::kIsa, widest == &avx2::kIsa && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq"));
  offer(avx512bf16::kIsa, widest == &avx512::kIsa && __builtin_cpu_supports("avx512bf16"));
#endif
  return widest;
}

}  // namespace

const Isa& ActiveIsa() {
  static const Isa& isa = *Widest(std::getenv("JAX_KNNCONV_CPU_ISA"));
  return isa;
}

}  // namespace knnconv::cpu
