// Shared by the tests of single update rules: conformance cases, updates to compare with values by hand, and steps to
// compare with other implementations (update_goldens.h).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "absl/types/span.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {

// Tolerances of states, all of them below 1.4, and of masters, which lie in (-1.1, 1.1). They include the rounding of
// what the reference stores. A unit is kUnit32.
struct UpdateTolerances {
  Tolerance state, master;
};

// Returns updates by `rule` on masters of every form and shards of awkward sizes and places. The cases do not compare
// states that are codes.
std::vector<OpCase> UpdateCases(const UpdateRule& rule, const UpdateTolerances& tolerances);

// An update of two fp64 elements on the reference, of which the second has weight decay. The bias corrections are those
// of the second step with betas 0.9 and 0.99.
class ByHand {
 public:
  ByHand(const UpdateRule& rule, std::initializer_list<std::vector<double>> states);

  // The learning rate is 0.1, and these are the clipped gradients.
  static constexpr double kGradients[] = {0.2, -1.5};
  static constexpr double kWeights[] = {1.0, 2.0};

  double Weight(int i) { return ElementOf(memory_.Bind(op_.weight_P, image_.data()), i); }
  double State(int state, int i) { return ElementOf(memory_.Bind(op_.states[state], image_.data()), i); }

 private:
  TestMemory memory_;
  Update op_;
  std::vector<std::byte> image_;
};

// Decay rates of the bias correction. With 0 there is no correction.
struct Betas {
  double beta1 = 0, beta2 = 0;
};

// Takes kGoldenSteps steps of kGoldenSize elements from zero states, with the weights and gradients of
// tests/parity/make_update_goldens.py. `series` is that of the first gradients. Calls check(op, memory, image) after
// the last step, on every backend.
inline constexpr int64_t kGoldenSize = 300;
inline constexpr int kGoldenSteps = 4;
void TakeGoldenSteps(
    const UpdateRule& rule, Betas betas, int series,
    const std::function<void(const Update& op, const TestMemory& memory, std::vector<std::byte>& image)>& check);

// Expects the elements of `got` to be the fp32 numbers whose bits are `want`.
void ExpectWords(const Tensor& got, absl::Span<const uint32_t> want, double tolerance);

}  // namespace shale::testing
