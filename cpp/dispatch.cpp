// Which of the compiled kernels this processor can run.
#include <stdexcept>

#include "kernel.hpp"

namespace log1pnmf {

namespace baseline { extern const Kernel kernel_table; }
#ifdef LOG1PNMF_X86_KERNELS
namespace avx2 { extern const Kernel kernel_table; }
namespace avx512 { extern const Kernel kernel_table; }
#endif

namespace {
std::vector<const Kernel*> runnable() {
  std::vector<const Kernel*> kernels;
#ifdef LOG1PNMF_X86_KERNELS
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    kernels.push_back(&avx512::kernel_table);
  if (fma) kernels.push_back(&avx2::kernel_table);
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
