// Random values, conversions and distances for the tests of the model.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/random.h"
#include "src/model/model_spec.h"
#include "tests/model/reference.h"

namespace terrace::testing {

inline Doubles random_doubles(std::uint64_t seed, std::size_t numel, double std = 1.0) {
  Doubles out(numel);
  for (std::size_t i = 0; i < numel; ++i) out[i] = std * random_normal(seed, 77, i, 0);
  return out;
}

// The same values rounded to T, as doubles and as T: what the reference and the code under test both start
// from.
template <typename T>
std::vector<T> rounded(Doubles& values) {
  std::vector<T> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i] = from_float<T>(static_cast<float>(values[i]));
    values[i] = to_float(out[i]);
  }
  return out;
}

template <typename T>
Doubles widened(const T* values, std::size_t numel) {
  Doubles out(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    if constexpr (std::is_same_v<T, double>) {
      out[i] = values[i];
    } else {
      out[i] = to_float(values[i]);
    }
  }
  return out;
}
template <typename T>
Doubles widened(const std::vector<T>& values) {
  return widened(values.data(), values.size());
}

// What a tolerance is in each type.
constexpr double by_dtype(DType dtype, double f32, double bf16, double f16) {
  return dtype == DType::f32 ? f32 : dtype == DType::bf16 ? bf16 : f16;
}

// Euclidean distance over the wanted values' length; NaN when a value is NaN, so that a test with < fails.
inline double error(const Doubles& got, const Doubles& want) {
  if (got.size() != want.size()) return INFINITY;
  double distance = 0;
  double length = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    distance += (got[i] - want[i]) * (got[i] - want[i]);
    length += want[i] * want[i];
  }
  return length == 0 ? std::sqrt(distance) : std::sqrt(distance / length);
}

// Every tensor random, norms around 1, so that no gradient is small by accident.
inline std::vector<Doubles> random_params(const ModelSpec& spec, std::uint64_t seed) {
  std::vector<Doubles> units;
  for (const UnitTensors& unit : unit_tensors(spec)) {
    units.emplace_back();
    for (const TensorInit& tensor : unit.tensors) {
      const double middle = tensor.rule == InitRule::ones ? 1.0 : 0.0;
      const double spread = 1 / std::sqrt(static_cast<double>(tensor.columns));
      const double std = tensor.rule == InitRule::normal ? spread : 0.2;
      for (const double value : random_doubles(++seed, tensor.numel(), std))
        units.back().push_back(middle + value);
    }
  }
  return units;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace terrace::testing
