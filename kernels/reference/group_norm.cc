#include <cmath>

#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {
namespace {

// The elements of one group of one sample, as offsets into [B, L, C].
struct Group {
  int64_t sample, group, positions, channels, width;

  Group(const Tensor& x_BLC, const Tensor& mean_BG, int64_t b, int64_t g)
      : sample(b), group(g), positions(x_BLC.dim(1)), channels(x_BLC.dim(2)), width(channels / mean_BG.dim(1)) {}

  double size() const { return static_cast<double>(positions * width); }

  // Calls body(offset, channel) for every element.
  template <class Body>
  void ForEach(const Body& body) const {
    for (int64_t l = 0; l < positions; ++l) {
      for (int64_t c = group * width; c < (group + 1) * width; ++c) body((sample * positions + l) * channels + c, c);
    }
  }
};

}  // namespace

absl::Status Reference(const GroupNormForward& op) {
  const int64_t groups = op.mean_BG.dim(1);
  for (int64_t b = 0; b < op.x_BLC.dim(0); ++b) {
    for (int64_t g = 0; g < groups; ++g) {
      const Group group(op.x_BLC, op.mean_BG, b, g);
      double sum = 0;
      group.ForEach([&](int64_t i, int64_t c) { sum += Get(op.x_BLC, i); });
      double squares = 0;
      group.ForEach([&](int64_t i, int64_t c) { squares += std::pow(Get(op.x_BLC, i) - sum / group.size(), 2); });
      const double mean = Put(op.mean_BG, b * groups + g, sum / group.size());
      const double rstd = Put(op.rstd_BG, b * groups + g, 1 / std::sqrt(squares / group.size() + op.epsilon));
      group.ForEach([&](int64_t i, int64_t c) {
        Put(op.y_BLC, i, (Get(op.x_BLC, i) - mean) * rstd * Get(op.weight_C, c) + Get(op.bias_C, c));
      });
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const GroupNormBackward& op) {
  const int64_t samples = op.x_BLC.dim(0), positions = op.x_BLC.dim(1), channels = op.x_BLC.dim(2);
  const int64_t groups = op.mean_BG.dim(1);
  for (int64_t c = 0; c < channels; ++c) {
    double weight_total = 0, bias_total = 0;
    for (int64_t b = 0; b < samples; ++b) {
      const int64_t statistic = b * groups + c / (channels / groups);
      for (int64_t l = 0; l < positions; ++l) {
        const int64_t i = (b * positions + l) * channels + c;
        const double n = (Get(op.x_BLC, i) - Get(op.mean_BG, statistic)) * Get(op.rstd_BG, statistic);
        weight_total += Get(op.d_y_BLC, i) * n;
        bias_total += Get(op.d_y_BLC, i);
      }
    }
    PutGradient(op.d_weight_C, c, weight_total, op.accumulate);
    PutGradient(op.d_bias_C, c, bias_total, op.accumulate);
  }
  // As for LayerNorm, with means over the group.
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t g = 0; g < groups; ++g) {
      const Group group(op.x_BLC, op.mean_BG, b, g);
      const double mean = Get(op.mean_BG, b * groups + g), rstd = Get(op.rstd_BG, b * groups + g);
      const auto gradient = [&](int64_t i, int64_t c) { return Get(op.d_y_BLC, i) * Get(op.weight_C, c); };
      const auto n = [&](int64_t i) { return (Get(op.x_BLC, i) - mean) * rstd; };
      double mean_g = 0, mean_gn = 0;
      group.ForEach([&](int64_t i, int64_t c) {
        mean_g += gradient(i, c) / group.size();
        mean_gn += gradient(i, c) * n(i) / group.size();
      });
      group.ForEach(
          [&](int64_t i, int64_t c) { Put(op.d_x_BLC, i, rstd * (gradient(i, c) - mean_g - n(i) * mean_gn)); });
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
