// What planning asks of the machine that a job is for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/memory/budget.h"
#include "kernels/op_backend.h"

namespace shale {

struct Machine {
  // The ops of one of so many ranks, which may share cores: they are asked for sizes alone. Not empty.
  std::function<std::unique_ptr<Ops>(int64_t ranks)> create_ops;
  DefaultBudget default_budget;  // Empty: there is no limit.
};

}  // namespace shale
