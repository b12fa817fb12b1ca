#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/plan/time/rates.h"

namespace shale {
namespace {

// How much less is known for each doubling of a size away from the nearest point, between points and beyond them.
constexpr double kSpreadOfDoubling = 0.02, kSpreadOfDoublingBeyond = 0.05;
// Slopes are pulled to 0 by this share of the points' weights, so that few points make a level.
constexpr double kPull = 1e-4;
// How far the time for a FLOP may lie outside of that of all points, in logarithms.
constexpr double kMostBeyond = 0.1;

double DistanceBetween(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double WeightAt(double distance) {
  const double near = distance * distance + 1e-2;
  return 1 / (near * near);
}

// Solves a x = b for a symmetric positive definite matrix, and returns x[0].
double SolveForFirst(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  // Eliminates from the last row up, so that the first unknown is left.
  for (size_t pivot = n; pivot-- > 1;) {
    for (size_t row = 0; row < pivot; ++row) {
      const double factor = a[row][pivot] / a[pivot][pivot];
      for (size_t column = 0; column < pivot; ++column) a[row][column] -= factor * a[pivot][column];
      b[row] -= factor * b[pivot];
    }
  }
  return b[0] / a[0][0];
}

double LogRate(const Rates::Point& point) { return point.log_seconds - std::log(std::max(point.flops, 1.0)); }

// Returns the logarithm of the seconds of a FLOP at the coordinates `at`: the constant of a weighted regression around
// it.
double LogRateAt(absl::Span<const Rates::Point> points, const std::vector<double>& at) {
  const size_t n = at.size() + 1;
  std::vector<std::vector<double>> a(n, std::vector<double>(n, 0));
  std::vector<double> b(n, 0), row(n, 1);
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const Rates::Point& point : points) {
    const double weight = WeightAt(DistanceBetween(point.coordinates, at)), rate = LogRate(point);
    for (size_t i = 1; i < n; ++i) row[i] = point.coordinates[i - 1] - at[i - 1];
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) a[i][j] += weight * row[i] * row[j];
      b[i] += weight * row[i] * rate;
    }
    least = std::min(least, rate);
    most = std::max(most, rate);
  }
  const double pull = kPull * a[0][0];
  for (size_t i = 1; i < n; ++i) a[i][i] += pull;
  const double margin = kMostBeyond + (most - least) / 2;
  return std::clamp(SolveForFirst(std::move(a), std::move(b)), least - margin, most + margin);
}

// Returns the seconds of moving `bytes`: a latency and a time for each byte, neither of which is negative.
double BytesSecondsAt(absl::Span<const Rates::Point> points, const std::vector<double>& at, double bytes) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  const Rates::Point* nearest = nullptr;
  double nearest_distance = 0;
  for (const Rates::Point& point : points) {
    const double distance = DistanceBetween(point.coordinates, at), seconds = std::exp(point.log_seconds);
    if (nearest == nullptr || distance < nearest_distance) nearest = &point, nearest_distance = distance;
    const double weight = WeightAt(distance) / (seconds * seconds), x = point.bytes;
    w += weight, wx += weight * x, wy += weight * seconds, wxx += weight * x * x, wxy += weight * x * seconds;
  }
  const double spread_of_x = wxx - wx * wx / w;
  const double of_nearest = std::exp(nearest->log_seconds);
  // Points of one size say nothing about latency.
  double slope = spread_of_x > 1e-6 * wxx ? (wxy - wx * wy / w) / spread_of_x : wxx > 0 ? wxy / wxx : 0;
  double latency = (wy - slope * wx) / w;
  if (latency < 0 && wxx > 0) latency = 0, slope = wxy / wxx;
  if (slope < 0) latency = of_nearest, slope = 0;
  return latency + slope * bytes;
}

bool IsInside(absl::Span<const Rates::Point> points, const std::vector<double>& at) {
  constexpr double kRounding = 1e-9;
  for (size_t i = 0; i < at.size(); ++i) {
    bool above = false, below = false;
    for (const Rates::Point& point : points) {
      above |= point.coordinates[i] >= at[i] - kRounding;
      below |= point.coordinates[i] <= at[i] + kRounding;
    }
    if (!above || !below) return false;
  }
  return true;
}

}  // namespace

CurveValue ValueOf(absl::Span<const Rates::Point> points, const Work& work, const std::vector<double>& at) {
  CurveValue value{.is_inside = IsInside(points, at)};
  value.seconds =
      work.flops > 0 ? std::exp(LogRateAt(points, at)) * work.flops : BytesSecondsAt(points, at, work.bytes());
  double nearest = std::numeric_limits<double>::infinity();
  for (const Rates::Point& point : points) {
    const double distance = DistanceBetween(point.coordinates, at);
    nearest = std::min(nearest, distance);
    value.spread = std::max(value.spread, point.spread);
  }
  value.spread += nearest * (value.is_inside ? kSpreadOfDoubling : kSpreadOfDoublingBeyond);
  return value;
}

}  // namespace shale
