// AdamW in one pass against an in-place loop over the same streams (its roof), alternating in one process.
// adamw_bench [--numel N] [--repeats R] [--threads LIST] [--json FILE]; prints JSON: medians and median
// absolute deviations in ns a parameter, and roof / adamw. Disk: none. Memory: 16 bytes a parameter.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/adamw_bench.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

// Reads and writes what AdamW does, with next to no arithmetic.
void roof_loop(float* master, float* exp_avg, float* exp_avg_sq, const bf16* gradient, bf16* parameter,
               std::size_t numel) {
  for (std::size_t i = 0; i < numel; i += kLanes) {
    const F32 g = load(gradient + i);
    const F32 p = load(master + i) + g;
    store(master + i, p);
    store(exp_avg + i, load(exp_avg + i) + g);
    store(exp_avg_sq + i, load(exp_avg_sq + i) + g);
    store(parameter + i, p);
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/base/aligned_memory.h"
#include "src/base/parallel_for.h"
#include "src/optimizer/chunk_update.h"

namespace terrace {
namespace {

struct Options {
  std::uint64_t numel = std::uint64_t{64} << 20;
  int repeats = 9;
  std::vector<int> threads = {1, 2};
  std::string json;
};

struct Streams {
  AlignedMemory memory;
  float* state[3];
  bf16* gradient;
  bf16* parameter;
};

// Streams laid one behind the other, each a few KiB and a cache line further off a power of two.
Streams make_streams(std::uint64_t numel) {
  constexpr std::size_t kStaggerBytes = 5 * 1024 + 64;
  Streams s{AlignedMemory(numel * 16 + 16 * kStaggerBytes, "the benchmark's streams"), {}, nullptr, nullptr};
  std::byte* at = s.memory.data();
  for (int j = 0; j < 3; ++j) {
    s.state[j] = reinterpret_cast<float*>(at);
    at += numel * sizeof(float) + kStaggerBytes;
  }
  s.gradient = reinterpret_cast<bf16*>(at);
  at += numel * sizeof(bf16) + kStaggerBytes;
  s.parameter = reinterpret_cast<bf16*>(at);
  parallel_for(div_up(numel, kUpdatePieceNumel), [&](std::size_t piece) {
    const std::uint64_t begin = piece * kUpdatePieceNumel;
    for (std::uint64_t i = begin; i < std::min(numel, begin + kUpdatePieceNumel); ++i) {
      const auto bits = static_cast<std::uint32_t>(i * 2654435761u);
      s.state[0][i] = static_cast<float>(bits) * 1e-10f;
      s.state[1][i] = 1e-3f;
      s.state[2][i] = 1e-6f;
      s.gradient[i] = to_bf16(static_cast<float>(bits) * 1e-12f);
      s.parameter[i] = bf16{0};
    }
  });
  return s;
}

void run_roof(Streams& s, std::uint64_t numel) {
  const auto parts = static_cast<std::uint64_t>(parallel_threads());
  parallel_for(parts, [&](std::size_t part) {
    const std::uint64_t begin = numel / kBlockNumel * part / parts * kBlockNumel;
    const std::uint64_t end = numel / kBlockNumel * (part + 1) / parts * kBlockNumel;
    TERRACE_DISPATCH(roof_loop)
    (s.state[0] + begin, s.state[1] + begin, s.state[2] + begin, s.gradient + begin, s.parameter + begin,
     end - begin);
  });
}

void run_adamw(Streams& s, std::uint64_t numel, std::uint64_t step) {
  const std::vector<ChunkSegment> segments{{.offset = 0, .numel = numel, .step = step}};
  const std::vector<AdamWHyper> groups{{.lr = 1e-4, .weight_decay = 0.1}};
  update_chunk({s.state[0], s.state[1], s.state[2]}, {s.state[0], s.state[1], s.state[2]},
               {s.gradient, DType::bf16}, {s.parameter, DType::bf16}, numel, segments, groups, 0.5f);
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

nlohmann::json summary(const std::vector<double>& ns) {
  const double middle = median(ns);
  std::vector<double> deviations;
  for (const double x : ns) deviations.push_back(std::abs(x - middle));
  return {{"median_ns", middle},
          {"mad_ns", median(deviations)},
          {"min_ns", *std::min_element(ns.begin(), ns.end())},
          {"gbps", 28.0 / middle}};
}

nlohmann::json measure(Streams& s, const Options& options, int threads) {
  set_parallel_threads(threads);
  std::vector<double> roof;
  std::vector<double> adamw;
  std::vector<double> ratio;
  const double to_ns = 1e9 / static_cast<double>(options.numel);
  run_roof(s, options.numel);
  run_adamw(s, options.numel, 1);
  for (int i = 0; i < options.repeats; ++i) {
    roof.push_back(to_ns * seconds([&] { run_roof(s, options.numel); }));
    adamw.push_back(to_ns * seconds([&] { run_adamw(s, options.numel, static_cast<std::uint64_t>(i) + 2); }));
    ratio.push_back(roof.back() / adamw.back());
  }
  return {{"threads", threads},
          {"roof", summary(roof)},
          {"adamw", summary(adamw)},
          {"roof_over_adamw", median(roof) / median(adamw)},
          {"median_of_paired_ratios", median(ratio)}};
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(key + " wants a value");
    const std::string value = argv[i + 1];
    if (key == "--numel") {
      options.numel = std::stoull(value) / kBlockNumel * kBlockNumel;
    } else if (key == "--repeats") {
      options.repeats = std::stoi(value);
    } else if (key == "--json") {
      options.json = value;
    } else if (key == "--threads") {
      options.threads.clear();
      std::istringstream list(value);
      for (std::string item; std::getline(list, item, ',');) options.threads.push_back(std::stoi(item));
    } else {
      throw std::invalid_argument(key + ": unknown; known are --numel, --repeats, --threads, --json");
    }
  }
  if (options.numel == 0 || options.repeats < 1)
    throw std::invalid_argument("--numel and --repeats are positive");
  return options;
}

int run_benchmark(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Streams streams = make_streams(options.numel);
  nlohmann::json report = {
      {"benchmark", "adamw"},       {"simd", simd_target_name(simd_target())}, {"numel", options.numel},
      {"repeats", options.repeats}, {"huge_pages", streams.memory.huge()},     {"bytes_per_parameter", 28}};
  for (const int threads : options.threads) report["runs"].push_back(measure(streams, options, threads));
  if (options.json.empty()) {
    std::cout << report.dump(2) << "\n";
  } else {
    std::ofstream(options.json) << report.dump(2) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  try {
    return terrace::run_benchmark(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "adamw_bench: " << error.what() << "\n";
    return 1;
  }
}
#endif
