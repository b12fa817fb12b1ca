// The parameters of a model, as its graph has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/frozen_weights.h"

namespace shale {

using ParameterId = int;
using GroupId = int;

// How a parameter is initialized.
struct Initializer {
  enum class Kind { kNormal, kOnes, kZeros, kUniform };
  Kind kind = Kind::kNormal;
  double standard_deviation = 0;  // Of kNormal and kUniform, whose mean is 0.
  bool operator==(const Initializer&) const = default;
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Initializer initializer;
  GroupId group = -1;
  bool frozen = false;  // Not trained: keeps its first value and has no gradient.
  // How its weights are stored. Other than kAsComputed only if it is frozen and that differs from the compute dtype.
  FrozenWeights stored = FrozenWeights::kAsComputed;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

}  // namespace shale
