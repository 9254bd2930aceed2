#include "src/train/machine_rates.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "io/disk_rates.h"
#include "src/base/aligned_memory.h"
#include "src/base/fail.h"
#include "src/base/hash.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/model/product.h"
#include "src/optimizer/chunk_update.h"
#include "src/plan/step_costs.h"
#include "src/train/setup.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of each call, of those that fit into `seconds` after one that is not counted; ascending.
template <typename Work>
std::vector<double> times_of(double seconds, const Work& work) {
  work();
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    work();
    times.push_back(std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9));
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  std::sort(times.begin(), times.end());
  return times;
}

template <typename Work>
double median_time_of(double seconds, const Work& work) {
  const std::vector<double> times = times_of(seconds, work);
  return times[times.size() / 2];
}

// A block's largest product: tokens of a contribution through the MLP. Sides beyond some thousand change
// nothing, since products are cut into tiles.
double measure_product_gflops(const Config& config) {
  constexpr std::int64_t kMost = 2048;
  const ModelSpec spec = model_spec(config);
  const DType dtype = compute_dtype(config);
  const auto rows = std::min<std::int64_t>(kMost, std::int64_t{config.train.micro_batch} * spec.context);
  const auto depth = std::min<std::int64_t>(kMost, spec.width);
  const auto columns = std::min<std::int64_t>(2 * kMost, spec.mlp_columns());
  const auto filled = [&](std::int64_t numel) {
    AlignedMemory memory(static_cast<std::size_t>(numel) * dtype_bytes(dtype), "operands to measure with");
    std::memset(memory.data(), 0x3C, memory.size());  // small numbers in bf16 and fp32
    return memory;
  };
  const AlignedMemory a = filled(rows * depth), b = filled(depth * columns);
  AlignedMemory c(static_cast<std::size_t>(rows * columns) * sizeof(float), "a product to measure with");
  WorkerPool pool(WorkerNeeds{});
  const double seconds = median_time_of(0.2, [&] {
    product_to(pool, rows, columns, depth, {a.data(), dtype, depth, false}, {b.data(), dtype, depth, true},
               reinterpret_cast<float*>(c.data()), columns, false);
  });
  return 2.0 * static_cast<double>(rows) * static_cast<double>(depth) * static_cast<double>(columns) /
         seconds / 1e9;
}

double measure_adamw_ns(const Config& config) {
  constexpr std::uint64_t kNumel = 4 * kMiB;  // larger than a cache
  const DType grad = grad_dtype(config), param = compute_dtype(config);
  const StateLayout layout = state_layout(adamw_streams(), kNumel);
  AlignedMemory state(layout.payload_bytes, "states to measure with");
  AlignedMemory gradient(kNumel * dtype_bytes(grad), "gradients to measure with");
  AlignedMemory parameters(kNumel * dtype_bytes(param), "parameters to measure with");
  const auto stream = [&](std::size_t s) {
    return reinterpret_cast<float*>(state.data() + layout.offset_bytes[s]);
  };
  const std::array<ChunkSegment, 1> segments{{{0, kNumel, 0, 1}}};
  const std::vector<AdamWHyper> groups = groups_at(config, 1e-4);
  const double seconds = median_time_of(0.1, [&] {
    update_chunk({stream(0), stream(1), stream(2)}, {stream(0), stream(1), stream(2)},
                 {gradient.data(), grad}, {parameters.data(), param}, kNumel, segments, groups, 1.0f);
  });
  return seconds * 1e9 / static_cast<double>(kNumel);
}

double measure_copy_gbps() {
  constexpr std::uint64_t kBytes = 64 * kMiB;
  AlignedMemory from(kBytes, "bytes to copy"), to(kBytes, "bytes to copy");
  std::memset(from.data(), 1, kBytes);
  const double seconds = median_time_of(0.1, [&] {
    parallel_for(kBytes / kMiB,
                 [&](std::size_t i) { std::memcpy(to.data() + i * kMiB, from.data() + i * kMiB, kMiB); });
  });
  return static_cast<double>(kBytes) / seconds / 1e9;
}

}  // namespace

double measure_checksum_gbps(std::span<const std::byte> memory) {
  const std::uint64_t pieces = std::min<std::uint64_t>(memory.size() / kMiB, 64);
  check(pieces > 0, "{} bytes to check", memory.size());
  const std::vector<double> times = times_of(0.02, [&] {
    parallel_for(pieces, [&](std::size_t i) {
      volatile std::uint64_t kept = hash128(memory.data() + i * kMiB, kMiB).low;
      static_cast<void>(kept);
    });
  });
  return static_cast<double>(pieces * kMiB) / times[0] / 1e9;
}

std::vector<std::string> nvme_folders(const Config& config) {
  std::vector<std::string> folders;
  for (const NvmePath& path : config.tiers.nvme) folders.push_back(path.path);
  if (folders.empty() && !config.store.path.empty()) folders.push_back(config.store.path);
  return folders;
}

MachineRates measure_machine(const Config& config, bool disk) {
  set_parallel_threads(static_cast<int>(config.compute.threads));
  MachineRates rates;
  rates.product_gflops = measure_product_gflops(config);
  rates.adamw_ns = measure_adamw_ns(config);
  rates.copy_gbps = measure_copy_gbps();
  {
    AlignedMemory memory(48 * kMiB, "bytes to check");  // larger than a cache
    std::memset(memory.data(), 1, memory.size());
    rates.checksum_gbps = measure_checksum_gbps(memory.span());
  }
  if (!disk) {
    rates.disk = "not measured: a step moves nothing to or from a disk";
    return rates;
  }
  try {
    const DiskRates measured = measure_disk(nvme_folders(config));
    rates.disk_read_gbps = measured.read_gbps;
    rates.disk_write_gbps = measured.write_gbps;
    rates.disk_both_gbps = measured.both_gbps;
    rates.disk = measured.method;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    rates.disk = fmt::format("not measured: {}", error.what());
  }
  return rates;
}

MachineProfile host_profile(const MachineRates& rates) {
  MachineProfile profile;
  profile.at(Lane::compute) = {rates.copy_gbps, 0, rates.product_gflops, 0};
  profile.at(Lane::h2d).gbps = profile.at(Lane::d2h).gbps = rates.copy_gbps;
  // An update moves 28 bytes a parameter (Op::bytes).
  profile.at(Lane::optimizer).gbps = rates.adamw_ns > 0 ? 28 / rates.adamw_ns : 0;
  if (rates.disk_both_gbps > 0) {
    profile.at(Lane::nvme) = disk_lane(rates.disk_read_gbps, rates.disk_write_gbps, rates.disk_both_gbps);
  }
  profile.checksum_gbps = rates.checksum_gbps;
  profile.share({Lane::compute, Lane::optimizer, Lane::h2d, Lane::d2h});
  return profile;
}

std::string disk_text(const MachineRates& rates) {
  if (!(rates.disk_both_gbps > 0)) return "disk " + rates.disk;
  return fmt::format("disk {:.2f} GB/s read, {:.2f} written, {:.2f} + {:.2f} both at once ({})",
                     rates.disk_read_gbps, rates.disk_write_gbps, rates.disk_both_gbps / 2,
                     rates.disk_both_gbps / 2, rates.disk);
}

}  // namespace terrace
