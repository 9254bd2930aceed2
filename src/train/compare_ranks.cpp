#include "src/train/compare_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "src/base/fail.h"

namespace terrace {
namespace {

template <typename T>
std::vector<double> to_doubles_as(std::span<const std::byte> data) {
  std::vector<double> values;
  values.reserve(data.size() / sizeof(T));
  for (std::size_t at = 0; at < data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof(T));
    values.push_back(static_cast<double>(to_float(value)));
  }
  return values;
}

}  // namespace

std::vector<double> to_doubles(DType dtype, std::span<const std::byte> data) {
  check(data.size() % dtype_bytes(dtype) == 0, "{} bytes of {}", data.size(), dtype_name(dtype));
  switch (dtype) {
    case DType::f32:
      return to_doubles_as<float>(data);
    case DType::bf16:
      return to_doubles_as<bf16>(data);
    case DType::f16:
      return to_doubles_as<f16>(data);
  }
  return {};
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  check(a.size() == b.size(), "{} values against {}", a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

RankDifferences compare_ranks(Session& session) {
  const ModelShape& model = session.model();
  Engine& engine = session.engine();
  const std::vector<std::uint64_t> bytes = unit_bytes(model, model.param_dtype);
  for (std::uint32_t local = 0; local < engine.local_ranks(); ++local) {
    session.executor(local).set_contribution(0, {}, {});
    session.probe(local).watch(OpKind::forward, Role::params, bytes);
  }
  engine.run(ProgramKind::eval, {});
  std::vector<ExecutorProbe::Copies> copies;
  for (std::uint32_t local = 0; local < engine.local_ranks(); ++local)
    copies.push_back(session.probe(local).take());
  RankDifferences differences;
  differences.largest.assign(engine.ranks(), 0);
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    differences.parameters += model.units[u].numel();
    for (const auto& copy : copies)
      check(copy.at(0).at(u).size() == bytes[u], "{} bytes of unit {} were read", copy[0][u].size(), u);
    // To the processes that rank 0 is not of, too.
    std::vector<double> first(model.units[u].numel(), 0.0);
    if (engine.first_rank() == 0) first = to_doubles(model.param_dtype, copies[0][0][u]);
    first = engine.join_processes(std::move(first));
    for (std::uint32_t local = 0; local < engine.local_ranks(); ++local) {
      const double largest = largest_difference(first, to_doubles(model.param_dtype, copies[local][0][u]));
      double& sum = differences.largest[engine.first_rank() + local];
      if (!std::isnan(sum)) sum = std::isnan(largest) ? largest : std::max(sum, largest);
    }
  }
  differences.largest = engine.join_processes(std::move(differences.largest));
  return differences;
}

std::string to_text(const RankDifferences& differences) {
  std::string text;
  for (std::size_t rank = 1; rank < differences.largest.size(); ++rank) {
    text += fmt::format("max |rank 0 - rank {}| = {:.9g} over {} parameters\n", rank,
                        differences.largest[rank], differences.parameters);
  }
  return text;
}

}  // namespace terrace
