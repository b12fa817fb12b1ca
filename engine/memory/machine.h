// The properties of a machine that planning needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/memory/budget.h"
#include "kernels/op_backend.h"

namespace shale {

struct Machine {
  // Creates the ops of one rank when `ranks` ranks share the machine and its cores. Planning only asks them for sizes.
  // Must be set.
  std::function<std::unique_ptr<Ops>(int64_t ranks)> create_ops;
  DefaultBudget default_budget;  // If empty, there is no limit.
  int64_t hardware_threads = 1;  // Threads that its CPUs run at once, for all ranks together.

  // Returns the same machine with no limit on memory.
  Machine WithoutBudget() const {
    Machine machine = *this;
    machine.default_budget = nullptr;
    return machine;
  }
};

}  // namespace shale
