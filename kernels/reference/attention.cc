#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {
namespace {

// Returns the offset of the row of D elements at (b, s, h).
int64_t Row(const Tensor& x, int64_t b, int64_t s, int64_t h) {
  return b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
}

double Dot(const Tensor& x, int64_t x_row, const Tensor& y, int64_t y_row) {
  double total = 0;
  for (int64_t d = 0; d < x.dim(3); ++d) total += Get(x, x_row + d) * Get(y, y_row + d);
  return total;
}

// Returns the score of a query and a key whose dot product is given.
template <class OpType>
double Score(const OpType& op, double dot) {
  const double score = op.scale * dot;
  return op.cap > 0 ? op.cap * std::tanh(score / op.cap) : score;
}

// Calls body(b, h, g, i, first, end) for every query i of every query head h. The query sees the keys [first, end) of
// key head g.
template <class OpType, class Body>
void ForEachQuery(const OpType& op, const Body& body) {
  const int64_t heads = op.q_BSHD.dim(2), per_group = heads / op.k_BSGD.dim(2);
  for (int64_t b = 0; b < op.q_BSHD.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < op.q_BSHD.dim(1); ++i) {
        const int64_t s = op.q_BSHD.dim(1), start = i - PositionOf(op.position_ids_BS, b * s + i, s);
        const int64_t first = op.window > 0 ? std::max(start, i - op.window + 1) : start;
        body(b, h, h / per_group, i, first, op.causal ? i + 1 : op.q_BSHD.dim(1));
      }
    }
  }
}

}  // namespace

absl::Status Reference(const AttentionForward& op) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  const int64_t s = op.q_BSHD.dim(1), heads = op.q_BSHD.dim(2), width = op.q_BSHD.dim(3);
  std::vector<double> p(s);
  ForEachQuery(op, [&](int64_t b, int64_t h, int64_t g, int64_t i, int64_t first, int64_t end) {
    const int64_t q_row = Row(op.q_BSHD, b, i, h);
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t j = first; j < end; ++j) {
      p[j] = Score(op, Dot(op.q_BSHD, q_row, op.k_BSGD, Row(op.k_BSGD, b, j, g)));
      largest = std::max(largest, p[j]);
    }
    double sum = 0;
    for (int64_t j = first; j < end; ++j) sum += p[j] = std::exp(p[j] - largest);
    Put(op.lse_BHS, (b * heads + h) * s + i, largest + std::log(sum));
    for (int64_t d = 0; d < width; ++d) {
      double total = 0;
      for (int64_t j = first; j < end; ++j) total += p[j] / sum * Get(op.v_BSGD, Row(op.v_BSGD, b, j, g) + d);
      Put(op.out_BSHD, Row(op.out_BSHD, b, i, h) + d, total);
    }
  });
  return absl::OkStatus();
}

absl::Status Reference(const AttentionBackward& op) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  const int64_t batch = op.q_BSHD.dim(0), s = op.q_BSHD.dim(1), heads = op.q_BSHD.dim(2), width = op.q_BSHD.dim(3);
  const int64_t groups = op.k_BSGD.dim(2);
  // d_k and d_v are [B, S, G, D], summed over queries and over the query heads of a group before rounding.
  std::vector<double> d_k(batch * s * groups * width), d_v(d_k.size()), d_q(width);
  ForEachQuery(op, [&](int64_t b, int64_t h, int64_t g, int64_t i, int64_t first, int64_t end) {
    const int64_t q_row = Row(op.q_BSHD, b, i, h), d_out_row = Row(op.d_out_BSHD, b, i, h);
    const double lse = Get(op.lse_BHS, (b * heads + h) * s + i);
    const double delta = Dot(op.d_out_BSHD, d_out_row, op.out_BSHD, Row(op.out_BSHD, b, i, h));
    std::fill(d_q.begin(), d_q.end(), 0);
    for (int64_t j = first; j < end; ++j) {
      const int64_t k_row = Row(op.k_BSGD, b, j, g), v_row = Row(op.v_BSGD, b, j, g);
      const double score = Score(op, Dot(op.q_BSHD, q_row, op.k_BSGD, k_row)), p = std::exp(score - lse);
      const double slope = op.cap > 0 ? 1 - (score / op.cap) * (score / op.cap) : 1;
      const double ds = p * (Dot(op.d_out_BSHD, d_out_row, op.v_BSGD, v_row) - delta) * slope * op.scale;
      for (int64_t d = 0; d < width; ++d) {
        const int64_t at = ((b * s + j) * groups + g) * width + d;
        d_q[d] += ds * Get(op.k_BSGD, k_row + d);
        d_k[at] += ds * Get(op.q_BSHD, q_row + d);
        d_v[at] += p * Get(op.d_out_BSHD, d_out_row + d);
      }
    }
    for (int64_t d = 0; d < width; ++d) Put(op.d_q_BSHD, Row(op.d_q_BSHD, b, i, h) + d, d_q[d]);
  });
  for (int64_t row = 0; row < batch * s * groups; ++row) {
    for (int64_t d = 0; d < width; ++d) {
      Put(op.d_k_BSGD, RowOffset(op.d_k_BSGD, row) + d, d_k[row * width + d]);
      Put(op.d_v_BSGD, RowOffset(op.d_v_BSGD, row) + d, d_v[row * width + d]);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
