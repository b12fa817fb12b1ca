#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const CachedAttention& op) {
  SHALE_RETURN_IF_ERROR(CheckBegins(op));
  const int64_t batch = op.q_BSHD.dim(0), length = op.q_BSHD.dim(1), heads = op.q_BSHD.dim(2), width = op.q_BSHD.dim(3);
  const int64_t groups = op.k_BSGD.dim(2), rows = op.keys_CGPD.dim(2), sequences = op.keys_CGPD.dim(0);
  const auto row_of = [](const Tensor& t, int64_t b, int64_t s, int64_t h) {
    return b * t.stride(0) + s * t.stride(1) + h * t.stride(2);
  };
  // Returns the offset of the row of the cache that holds `position`.
  const auto cached = [&](int64_t b, int64_t g, int64_t position) {
    return ((b * groups + g) * rows + position % rows) * width;
  };
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = BeginOf(op.begins_B, b);
    for (int64_t s = 0; s < length; ++s) {
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t c = b; c < sequences; c += batch) {
          for (int64_t d = 0; d < width; ++d) {
            Put(op.keys_CGPD, cached(c, g, begin + s) + d, Get(op.k_BSGD, row_of(op.k_BSGD, b, s, g) + d));
            Put(op.values_CGPD, cached(c, g, begin + s) + d, Get(op.v_BSGD, row_of(op.v_BSGD, b, s, g) + d));
          }
        }
      }
    }
    for (int64_t s = 0; s < length; ++s) {
      const int64_t end = begin + s + 1, first = op.window > 0 ? std::max<int64_t>(0, end - op.window) : 0;
      std::vector<double> p(end - first);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t g = h / (heads / groups), q_row = row_of(op.q_BSHD, b, s, h);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = first; j < end; ++j) {
          double score = 0;
          for (int64_t d = 0; d < width; ++d)
            score += Get(op.q_BSHD, q_row + d) * Get(op.keys_CGPD, cached(b, g, j) + d);
          score *= op.scale;
          p[j - first] = op.cap > 0 ? op.cap * std::tanh(score / op.cap) : score;
          largest = std::max(largest, p[j - first]);
        }
        for (double& weight : p) sum += weight = std::exp(weight - largest);
        for (int64_t d = 0; d < width; ++d) {
          double total = 0;
          for (int64_t j = first; j < end; ++j) total += p[j - first] / sum * Get(op.values_CGPD, cached(b, g, j) + d);
          Put(op.out_BSHD, row_of(op.out_BSHD, b, s, h) + d, total);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
