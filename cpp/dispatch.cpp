// Which of the compiled kernels this processor can run.
#include <stdexcept>

#include "kernel.hpp"

#if defined(LOG1PNMF_X86_KERNELS) && defined(_WIN32)
#include <immintrin.h>
#include <intrin.h>
#endif

namespace log1pnmf {

namespace baseline {
extern const Kernel kernel_table;
}
#ifdef LOG1PNMF_X86_KERNELS
namespace avx2 {
extern const Kernel kernel_table;
}
namespace avx512 {
extern const Kernel kernel_table;
}
#endif

namespace {

#if defined(LOG1PNMF_X86_KERNELS) && defined(_WIN32)
// Clang's __builtin_cpu_supports needs a library that programs on Windows do not link.
__attribute__((target("xsave"))) int level() {
  int one[4], seven[4];
  __cpuid(one, 1);
  __cpuidex(seven, 7, 0);
  const auto has = [](int word, int bit) { return ((word >> bit) & 1) != 0; };
  if (!has(one[2], 27)) return 0;  // the system does not keep the wide registers
  const auto kept = _xgetbv(0);
  const bool avx2 = (kept & 0x6) == 0x6 && has(one[2], 12) && has(seven[1], 5);
  const bool avx512 = has(seven[1], 16) && has(seven[1], 17) && has(seven[1], 31);
  return avx2 + (avx2 && (kept & 0xe6) == 0xe6 && avx512);
}
#elif defined(LOG1PNMF_X86_KERNELS)
// 0: baseline, 1: and AVX2, 2: and AVX-512.
int level() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 + (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl"));
}
#endif

std::vector<const Kernel*> runnable() {
  std::vector<const Kernel*> kernels;
#ifdef LOG1PNMF_X86_KERNELS
  if (level() == 2) kernels.push_back(&avx512::kernel_table);
  if (level() >= 1) kernels.push_back(&avx2::kernel_table);
#endif
  kernels.push_back(&baseline::kernel_table);
  return kernels;
}
}  // namespace

std::vector<std::string> runnable_kernels() {
  std::vector<std::string> names;
  for (const Kernel* k : runnable()) names.emplace_back(k->name);
  return names;
}

const Kernel& find_kernel(const std::string& name) {
  for (const Kernel* k : runnable())
    if (name == k->name) return *k;
  throw std::invalid_argument("kernel '" + name + "' cannot run on this processor");
}

}  // namespace log1pnmf
