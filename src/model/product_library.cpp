#include "src/model/product_library.h"

#include <spdlog/fmt/fmt.h>
#include <dnnl.hpp>

namespace terrace {
namespace {

std::string isa_name(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "SSE4.1";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx512_core:
      return "AVX512_CORE";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX512_CORE_BF16";
    default:
      return fmt::format("instruction set {:#x}", static_cast<unsigned>(isa));
  }
}

}  // namespace

std::string product_library() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}, {}", version->major, version->minor, version->patch,
                     isa_name(dnnl::get_effective_cpu_isa()));
}

}  // namespace terrace
