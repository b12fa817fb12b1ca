#include "tests/kernels/gradient_check.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/op.h"
#include "kernels/reference/reference_ops.h"

namespace shale::testing {
namespace {

double Loss(const GradientCase& c, const std::vector<std::byte>& image) {
  const AlignedBytes bytes(image);
  for (const Op& op : c.forward) {
    const absl::Status status = RunReference(c.memory.Bind(op, bytes.data()));
    EXPECT_TRUE(status.ok()) << status;
  }
  double loss = 0;
  for (const GradientCase::Pair& output : c.outputs) {
    const Tensor value = c.memory.Bind(output.value, bytes.data());
    const Tensor factor = c.memory.Bind(output.gradient, bytes.data());
    for (int64_t i = 0; i < value.elements(); ++i) {
      loss += ElementOf(value, i) * (factor.present() ? ElementOf(factor, i) : 1.0);
    }
  }
  return loss;
}

}  // namespace

void ExpectGradientsMatchFiniteDifferences(const GradientCase& c, double tolerance) {
  constexpr double kStep = 1e-5;
  const AlignedBytes result(c.memory.image());
  for (const std::vector<Op>* ops : {&c.forward, &c.backward}) {
    for (const Op& op : *ops) {
      const absl::Status status = RunReference(c.memory.Bind(op, result.data()));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  for (size_t n = 0; n < c.inputs.size(); ++n) {
    SCOPED_TRACE("input " + std::to_string(n));
    const Tensor gradient = c.memory.Bind(c.inputs[n].gradient, result.data());
    ASSERT_EQ(gradient.elements(), c.inputs[n].value.elements());
    std::vector<std::byte> image = c.memory.image();
    const Tensor value = c.memory.Bind(c.inputs[n].value, image.data());
    ASSERT_EQ(value.dtype, DType::kFloat64);
    for (int64_t i = 0; i < value.elements(); ++i) {
      const double middle = ElementOf(value, i);
      SetElement(value, i, middle + kStep);
      const double above = Loss(c, image);
      SetElement(value, i, middle - kStep);
      const double below = Loss(c, image);
      SetElement(value, i, middle);
      const double want = (above - below) / (2 * kStep);
      EXPECT_NEAR(ElementOf(gradient, i), want, tolerance * std::max(1.0, std::abs(want))) << "element " << i;
    }
  }
}

}  // namespace shale::testing
