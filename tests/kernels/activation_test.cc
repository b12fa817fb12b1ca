// Tests SwiGLU and GELU.
#include "kernels/ops/activation.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

// An fp32 sigmoid loses about two units in each of exp, 1 + e and the quotient; two or three multiplications follow.
// Far out, where e^-x overflows, sigmoid may be 0 instead of about 1e-38.
constexpr double kUnits = 16 * kUnit32;
constexpr double kTiny = 1e-36;

const std::vector<double>& ExtremeValues() {
  static const auto& values = *new std::vector<double>{
      0.0,   -0.0, 1e-30, -1e-30, 1e-6,  -1e-6, -1.278, 5,
      -5,    20,   -20,   86,     -86,   88,    -88,    90,
      -90,   103,  -103,  105,    -105,  1e4,   -1e4,   1e10,
      -1e10, 1e20, -1e20, 1e30,   -1e30, 3e38,  -3e38,  std::numeric_limits<double>::quiet_NaN()};
  return values;
}

// The extremes that activations in `act` can have. In f16 no infinities: a derivative there is not a number.
std::vector<double> ExtremeValuesOf(DType act) {
  constexpr double kMostHalf = 65504;
  std::vector<double> values = ExtremeValues();
  if (act == DType::kFloat16) {
    for (double& value : values) value = std::clamp(value, -kMostHalf, kMostHalf);
  }
  return values;
}

std::string ActivationShape(DType act, int64_t rows, int64_t width) {
  return NameOf(act) + "_" + std::to_string(rows) + "x" + std::to_string(width);
}

std::string GateName(GateKind gate) { return gate == GateKind::kSilu ? "SwiGlu" : "GeGlu"; }

// The GELU of a gate left of about -1 is a small part of it, and only as accurate as the gate; `most` bounds what it is
// multiplied by.
double GateError(GateKind gate, double most) { return gate == GateKind::kSilu ? kTiny : 4 * kUnits * most; }

OpCase SwiGluForwardCase(DType act, GateKind gate, int64_t t, int64_t f) {
  OpCase c{.name = GateName(gate) + "Forward_" + ActivationShape(act, t, f)};
  c.op = SwiGluForward{
      .gate_up_T2F = c.memory.Random(act, {t, 2 * f}, -10, 10), .y_TF = c.memory.Output(act, {t, f}), .gate = gate};
  c.tolerances["y"] = {.absolute = GateError(gate, 10), .relative = kUnits};
  return c;
}

// kToo: the backward op also computes the result of the forward op again.
enum class Value { kNo, kToo };

OpCase SwiGluBackwardCase(DType act, GateKind gate, int64_t t, int64_t f, Value value, bool in_place) {
  OpCase c{.name = GateName(gate) + "Backward_" + ActivationShape(act, t, f) + (value == Value::kToo ? "_value" : "") +
                   (in_place ? "_in_place" : "")};
  const Tensor gate_up = c.memory.Random(act, {t, 2 * f}, -4, 4), d_y = c.memory.Random(act, {t, f});
  SwiGluBackward op{.gate_up_T2F = gate_up,
                    .d_y_TF = d_y,
                    .d_gate_up_T2F = in_place ? gate_up : c.memory.Output(act, {t, 2 * f}),
                    .gate = gate};
  if (value == Value::kToo) op.y_TF = in_place ? d_y : c.memory.Output(act, {t, f});
  c.op = op;
  c.tolerances["y"] = {.absolute = GateError(gate, 4), .relative = kUnits};
  // silu' has a zero at -1.278, so its error is not relative; |d_y up| < 4.
  c.tolerances["d_gate_up"] = {.absolute = 4 * kUnits, .relative = kUnits};
  return c;
}

OpCase SwiGluExtremesCase(DType act, GateKind gate, bool backward) {
  OpCase c{.name = GateName(gate) + (backward ? "Backward_" : "Forward_") + NameOf(act) + "_extremes"};
  const int64_t f = static_cast<int64_t>(ExtremeValues().size());
  std::vector<double> row = ExtremeValuesOf(act);
  row.resize(2 * f, 1.0);
  const Tensor gate_up = c.memory.Values(act, {1, 2 * f}, row);
  if (backward) {
    c.op = SwiGluBackward{.gate_up_T2F = gate_up,
                          .d_y_TF = c.memory.Values(act, {1, f}, std::vector<double>(f, 1.0)),
                          .d_gate_up_T2F = c.memory.Output(act, {1, 2 * f}),
                          .y_TF = c.memory.Output(act, {1, f}),
                          .gate = gate};
    c.tolerances["d_gate_up"] = {.absolute = 4 * kUnits, .relative = kUnits};
    c.tolerances["y"] = {.absolute = GateError(gate, 1), .relative = kUnits};
  } else {
    c.op = SwiGluForward{.gate_up_T2F = gate_up, .y_TF = c.memory.Output(act, {1, f}), .gate = gate};
    // Below -88 |silu| is 1e-36 or less, which fp32 may flush to 0.
    c.tolerances["y"] = {.absolute = GateError(gate, 1), .relative = kUnits};
  }
  return c;
}

std::string KindName(GeluKind kind) { return kind == GeluKind::kTanh ? "Tanh" : "Erf"; }

// The tail of the erf kernel has a relative error of 5 units, plus x^2 / 2 units from its exponent: less than 16 units
// of the largest |x|. Left of about -1 the value is a small part of x, and only as accurate as x.
OpCase GeluCase(DType act, GeluKind kind, bool backward, bool in_place, int64_t t, int64_t f, bool extremes,
                Value value = Value::kNo) {
  OpCase c{.name = "Gelu" + KindName(kind) + (backward ? "Backward_" : "Forward_") + ActivationShape(act, t, f) +
                   (value == Value::kToo ? "_value" : "") + (in_place ? "_in_place" : "") +
                   (extremes ? "_extremes" : "")};
  const Tensor x = extremes ? c.memory.Values(act, {t, f}, ExtremeValuesOf(act)) : c.memory.Random(act, {t, f}, -6, 6);
  if (!backward) {
    c.op = GeluForward{.x_TF = x, .y_TF = c.memory.Output(act, {t, f}), .kind = kind};
    c.tolerances["y"] = {.absolute = 4 * kUnits, .relative = kUnits};
    return c;
  }
  const Tensor d_y = c.memory.Random(act, {t, f}, 0.5, 1);
  GeluBackward op{.x_TF = x, .d_y_TF = d_y, .d_x_TF = in_place ? d_y : c.memory.Output(act, {t, f}), .kind = kind};
  if (value == Value::kToo) op.y_TF = in_place ? x : c.memory.Output(act, {t, f});
  c.op = op;
  for (const char* output : {"d_x", "y"}) c.tolerances[output] = {.absolute = 4 * kUnits, .relative = kUnits};
  return c;
}

std::vector<OpCase> ActivationCases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [t, f] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 16}, {2, 33}, {41, 241}, {2, 9001}}) {
      for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
        cases.push_back(SwiGluForwardCase(act, gate, t, f));
        cases.push_back(SwiGluBackwardCase(act, gate, t, f, Value::kNo, false));
        cases.push_back(SwiGluBackwardCase(act, gate, t, f, Value::kToo, false));
      }
      for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
        cases.push_back(GeluCase(act, kind, false, false, t, f, false));
        cases.push_back(GeluCase(act, kind, true, false, t, f, false));
        cases.push_back(GeluCase(act, kind, true, false, t, f, false, Value::kToo));
      }
    }
    for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
      cases.push_back(SwiGluBackwardCase(act, gate, 4, 37, Value::kNo, true));
      cases.push_back(SwiGluBackwardCase(act, gate, 4, 37, Value::kToo, true));
      cases.push_back(SwiGluExtremesCase(act, gate, false));
      cases.push_back(SwiGluExtremesCase(act, gate, true));
    }
    const int64_t extremes = static_cast<int64_t>(ExtremeValues().size());
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      cases.push_back(GeluCase(act, kind, true, true, 4, 37, false));
      cases.push_back(GeluCase(act, kind, true, true, 4, 37, false, Value::kToo));
      cases.push_back(GeluCase(act, kind, false, false, 1, extremes, true));
      cases.push_back(GeluCase(act, kind, true, false, 1, extremes, true));
      cases.push_back(GeluCase(act, kind, true, false, 1, extremes, true, Value::kToo));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Activation, OpConformance, ::testing::ValuesIn(ActivationCases()), CaseName);

constexpr DType kActivationWide = DType::kFloat64;

TEST(ActivationGradient, SwiGluAndGeGluAreTheDerivativesOfTheirForward) {
  for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
    GradientCase c;
    const Tensor gate_up = c.memory.Random(kActivationWide, {3, 10}, -4, 4);
    const Tensor y = c.memory.Output(kActivationWide, {3, 5});
    const Tensor d_y = c.memory.Random(kActivationWide, {3, 5}), d_gate_up = c.memory.Output(kActivationWide, {3, 10});
    c.forward = {SwiGluForward{.gate_up_T2F = gate_up, .y_TF = y, .gate = gate}};
    c.backward = {SwiGluBackward{.gate_up_T2F = gate_up, .d_y_TF = d_y, .d_gate_up_T2F = d_gate_up, .gate = gate}};
    c.outputs = {{y, d_y}};
    c.inputs = {{gate_up, d_gate_up}};
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

TEST(ActivationGradient, GeluIsTheDerivativeOfItsForward) {
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
    GradientCase c;
    const Tensor x = c.memory.Random(kActivationWide, {3, 20}, -5, 5), y = c.memory.Output(kActivationWide, {3, 20});
    const Tensor d_y = c.memory.Random(kActivationWide, {3, 20}), d_x = c.memory.Output(kActivationWide, {3, 20});
    c.forward = {GeluForward{.x_TF = x, .y_TF = y, .kind = kind}};
    c.backward = {GeluBackward{.x_TF = x, .d_y_TF = d_y, .d_x_TF = d_x, .kind = kind}};
    c.outputs = {{y, d_y}};
    c.inputs = {{x, d_x}};
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

// Runs both ops on every backend and expects the y of both to be the same bits.
template <class Forward, class Backward>
void ExpectSameValue(const TestMemory& memory, const Forward& forward, const Backward& backward) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> first = RunOnBackend(backend.name, memory, forward);
    std::vector<std::byte> second = RunOnBackend(backend.name, memory, backward);
    const Tensor wanted = memory.Bind(forward.y_TF, first.data()), found = memory.Bind(backward.y_TF, second.data());
    ASSERT_EQ(std::memcmp(wanted.data, found.data, wanted.extent_bytes()), 0);
  }
}

// Activation checkpointing relies on this: the value that a backward op computes again has the bits of the first one.
TEST(ActivationValue, OfBackwardHasTheBitsOfForward) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(NameOf(act));
    TestMemory memory;
    const int64_t t = 37, f = 301;
    const Tensor gate_up = memory.Random(act, {t, 2 * f}, -30, 30), d_y = memory.Random(act, {t, f});
    ExpectSameValue(memory, SwiGluForward{.gate_up_T2F = gate_up, .y_TF = memory.Output(act, {t, f})},
                    SwiGluBackward{.gate_up_T2F = gate_up,
                                   .d_y_TF = d_y,
                                   .d_gate_up_T2F = memory.Output(act, {t, 2 * f}),
                                   .y_TF = memory.Output(act, {t, f})});
    const Tensor x = memory.Random(act, {t, f}, -8, 8);
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      ExpectSameValue(memory, GeluForward{.x_TF = x, .y_TF = memory.Output(act, {t, f}), .kind = kind},
                      GeluBackward{.x_TF = x,
                                   .d_y_TF = d_y,
                                   .d_x_TF = memory.Output(act, {t, f}),
                                   .kind = kind,
                                   .y_TF = memory.Output(act, {t, f})});
    }
  }
}

// Compares with values of the exact normal distribution (Abramowitz and Stegun, table 26.1): Phi(1) and Phi(-2).
TEST(Activation, GeluErfIsExact) {
  TestMemory memory;
  const Tensor x = memory.Values(kActivationWide, {1, 2}, {1.0, -2.0});
  const Tensor y = memory.Output(kActivationWide, {1, 2});
  std::vector<std::byte> image = RunOnReference(memory, GeluForward{.x_TF = x, .y_TF = y, .kind = GeluKind::kErf});
  EXPECT_NEAR(ElementOf(memory.Bind(y, image.data()), 0), 0.841344746068543, 1e-14);
  EXPECT_NEAR(ElementOf(memory.Bind(y, image.data()), 1), -2 * 0.022750131948179, 1e-14);
}

}  // namespace
}  // namespace shale::testing
