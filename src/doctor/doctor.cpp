#include "terrace/doctor.h"

#include <dnnl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/version.h>
#include <tbb/version.h>
#include <toml++/impl/version.h>
#include <xxhash.h>
#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "io/io_probe.h"
#include "kernels/cpu/simd.h"
#include "src/base/units.h"
#include "src/doctor/machine.h"
#include "src/model/product.h"
#include "terrace/error.h"

namespace terrace {
namespace {

class Report {
 public:
  void section(std::string_view title) { text_ += fmt::format("{}{}\n", text_.empty() ? "" : "\n", title); }
  void line(std::string_view name, const std::string& value) {
    text_ += fmt::format("  {:<16} {}\n", name, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string simd_facts() {
  std::string supported;
  for (const SimdTarget target : supported_simd_targets()) {
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", simd_target_name(target));
  }
  try {
    return fmt::format("{} in use (TERRACE_SIMD forces one of {})", simd_target_name(simd_target()),
                       supported);
  } catch (const Error& error) {
    return fmt::format("{}; supported: {}", error.what(), supported);
  }
}

std::string product_facts() {
  return products_take_bf16() ? "oneDNN multiplies bf16 natively"
                              : "oneDNN has no fast bf16 here: operands are widened to fp32, which is slower";
}

void describe_path(const std::string& path, Report& report) {
  const PathFacts facts = path_facts(path);
  report.section(path);
  if (facts.existing.empty()) return report.line("file system", "unknown: no parent of this path exists");
  std::string why;
  const bool direct = probe_direct_io(facts.existing, &why);
  report.line("file system",
              facts.file_system + (facts.existing == path ? "" : " (at " + facts.existing + ")"));
  report.line("free", format_bytes(facts.free_bytes));
  report.line("O_DIRECT", direct ? "works (a block written and read)" : "does not work: " + why);
}

std::string library_versions() {
  const dnnl_version_t* dnnl = dnnl_version();
  return fmt::format(
      "oneDNN {}.{}.{}, oneTBB {}, Highway {}, spdlog {}.{}.{}, fmt {}.{}.{}, xxHash {}.{}.{}, toml++ "
      "{}.{}.{}, "
      "nlohmann-json {}.{}.{}, CLI11 {}",
      dnnl->major, dnnl->minor, dnnl->patch, TBB_runtime_version(), TERRACE_HIGHWAY_VERSION, SPDLOG_VER_MAJOR,
      SPDLOG_VER_MINOR, SPDLOG_VER_PATCH, FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
      XXH_versionNumber() / 10000, XXH_versionNumber() / 100 % 100, XXH_versionNumber() % 100, TOML_LIB_MAJOR,
      TOML_LIB_MINOR, TOML_LIB_PATCH, NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
      NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION);
}

}  // namespace

std::string version() {
  return TERRACE_VERSION;
}

std::string doctor_report(const std::vector<std::string>& paths) {
  Report report;
  report.section("Compute");
  report.line("processor", fmt::format("{}, {} cores usable", processor_name(), usable_cores()));
  report.line("features", processor_features());
  report.line("SIMD target", simd_facts());
  report.line("matrix products", product_facts());
  report.line("CUDA", "not in this build: it has the host device only");
  report.section("Memory");
  report.line("memory", memory_facts());
  report.line("page-lock limit", lock_limit_facts());
  report.line("huge pages", huge_page_facts());
  report.section("I/O");
  report.line("kernel", kernel_facts());
  const IoSupport uring = probe_io_uring();
  report.line("io_uring", (uring.available ? "works: " : "not available, threads are used: ") + uring.detail);
  report.line("open files", file_limit_facts());
  for (const auto& path : paths) describe_path(path, report);
  report.section("Software");
  report.line("terrace", version());
  report.line("libraries", library_versions());
  return report.text();
}

}  // namespace terrace
