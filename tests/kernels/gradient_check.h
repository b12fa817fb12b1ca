// Checks the reference's backward ops against finite differences of its forward ops, all in fp64.
#pragma once

#include <vector>

#include "kernels/op.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Tensors are symbolic, in `memory`, and of dtype f64 wherever the ops say act or f32 (integers stay). The loss is
//   sum over outputs of <output, d_output>,
// where d_output is a random operand of `backward`; when it is absent its elements count as 1.
struct GradientCase {
  struct Pair {
    Tensor value;
    Tensor gradient;
  };
  TestMemory memory;
  std::vector<Op> forward;   // Run in this order.
  std::vector<Op> backward;  // Run after `forward`.
  std::vector<Pair> outputs;
  std::vector<Pair> inputs;  // What is varied, and where `backward` leaves its gradient.
};

// Expects that the gradients match central differences. With a step h these have an error of h^2 / 6 |f'''| + 2^-53 |f|
// / h. For h = 1e-5, and losses and third derivatives of up to a few hundred, that is below 1e-7.
void ExpectGradientsMatchFiniteDifferences(const GradientCase& c, double tolerance = 1e-7);

}  // namespace shale::testing
