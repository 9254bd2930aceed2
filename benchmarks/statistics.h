// What a benchmark's figures are quoted with.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace terrace {

inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Median and median absolute deviation.
inline nlohmann::json median_and_mad(const std::vector<double>& values) {
  const double middle = median_of(values);
  std::vector<double> away;
  for (const double value : values) away.push_back(std::abs(value - middle));
  return {{"median", middle}, {"mad", median_of(away)}};
}

}  // namespace terrace
