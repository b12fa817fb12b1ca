#include "engine/verify/distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shale {

double LargestDistance(const ParameterValues& a, const ParameterValues& b, std::string* worst) {
  double total = 0;
  for (const auto& [name, values] : b) {
    for (float v : values) total += static_cast<double>(v) * v;
  }
  const double floor = 1e-3 * std::sqrt(total);
  double largest = 0;
  for (const auto& [name, values] : b) {
    const std::vector<float>& other = a.at(name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(other[i]) - values[i];
      difference += d * d;
      norm += static_cast<double>(values[i]) * values[i];
    }
    if (difference == 0) continue;  // Also where all gradients are 0, and with them the floor.
    const double distance = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
    if (distance <= largest) continue;
    if (worst != nullptr) *worst = name;
    if (!std::isfinite(distance)) return std::numeric_limits<double>::infinity();
    largest = distance;
  }
  return largest;
}

double ReorderedTolerance(int64_t targets, bool rounded) {
  return rounded ? 1e-2 : 40 * 0x1p-24 * std::sqrt(static_cast<double>(std::max<int64_t>(1, targets)));
}

}  // namespace shale
