#include "kernels/ops/activation.h"

#include <cmath>
#include <numbers>

#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Gelu returns GELU, and GeluDerivative its derivative. They compute the normal distribution with erfc, because 1 + erf
// would cancel in the tail.
double Gelu(double x, GeluKind kind) {
  if (kind == GeluKind::kErf) return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
  const double z = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x * Sigmoid(2 * z);  // (1 + tanh z) / 2 = sigmoid(2 z).
}

double GeluDerivative(double x, GeluKind kind) {
  if (kind == GeluKind::kErf) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const double z = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  const double dz = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  return Sigmoid(2 * z) + 2 * x * Sigmoid(2 * z) * Sigmoid(-2 * z) * dz;
}

double Gate(double x, GateKind kind) { return kind == GateKind::kSilu ? x * Sigmoid(x) : Gelu(x, GeluKind::kTanh); }
double GateDerivative(double x, GateKind kind) {
  // silu' = s (1 + g (1 - s)).
  return kind == GateKind::kSilu ? Sigmoid(x) * (1 + x * Sigmoid(-x)) : GeluDerivative(x, GeluKind::kTanh);
}

}  // namespace

absl::Status Reference(const SwiGluForward& op) {
  const int64_t f = op.y_TF.dim(1);
  for (int64_t t = 0; t < op.y_TF.dim(0); ++t) {
    for (int64_t i = 0; i < f; ++i) {
      const double gate = Get(op.gate_up_T2F, t * 2 * f + i);
      Put(op.y_TF, t * f + i, Gate(gate, op.gate) * Get(op.gate_up_T2F, t * 2 * f + f + i));
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const SwiGluBackward& op) {
  const int64_t f = op.d_y_TF.dim(1);
  for (int64_t t = 0; t < op.d_y_TF.dim(0); ++t) {
    for (int64_t i = 0; i < f; ++i) {
      const int64_t gate_at = t * 2 * f + i, up_at = gate_at + f;
      const double gate = Get(op.gate_up_T2F, gate_at);
      const double up = Get(op.gate_up_T2F, up_at);
      const double d_y = Get(op.d_y_TF, t * f + i);
      Put(op.d_gate_up_T2F, gate_at, d_y * up * GateDerivative(gate, op.gate));
      Put(op.d_gate_up_T2F, up_at, d_y * Gate(gate, op.gate));
      if (op.y_TF.present()) Put(op.y_TF, t * f + i, Gate(gate, op.gate) * up);
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const GeluForward& op) {
  for (int64_t i = 0; i < op.x_TF.elements(); ++i) Put(op.y_TF, i, Gelu(Get(op.x_TF, i), op.kind));
  return absl::OkStatus();
}

absl::Status Reference(const GeluBackward& op) {
  for (int64_t i = 0; i < op.x_TF.elements(); ++i) {
    const double x = Get(op.x_TF, i);
    Put(op.d_x_TF, i, Get(op.d_y_TF, i) * GeluDerivative(x, op.kind));
    if (op.y_TF.present()) Put(op.y_TF, i, Gelu(x, op.kind));
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
