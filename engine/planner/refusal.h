// Why a job does not fit, and what would make it fit, for people and for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory/machine.h"

namespace shale {

// A setting of one field, as --set takes it: path=value. An empty value sets the field back to its default.
struct Override {
  std::string path;
  std::string value;

  bool operator==(const Override&) const = default;
};

// Settings that change a job, with what one rank then needs. The job was compiled and planned with them.
struct WayOut {
  std::vector<Override> overrides;  // To be applied in this order.
  int64_t arena_bytes = 0;
  int64_t host_bytes = 0;
  double recompute_flops = 0;  // What one rank recomputes in one step.
  std::string caveat;          // What else changes: "the CPU updates". Empty: the training computes the same.
};

struct Refusal {
  // What one rank needs at least, with the job's own settings.
  int64_t arena_bytes = 0;
  int64_t host_bytes = 0;
  Budget budget;
  // The job fits with each of them.
  std::vector<WayOut> ways_out;
  // Whether no single change suffices. `ways_out` then has at most one element: all changes that save memory.
  bool only_together = false;
  // All changes that save memory, if the job does not even fit with these.
  std::optional<WayOut> nearest;
  // Whether the search for ways out reached its time limit. There may then be others.
  bool search_ended_early = false;
};

// Returns the refusal in one line: "needs 31.2 GiB per rank, budget 24.0 GiB, 7.20 GiB too little; fits with
// activation_checkpointing.preset=BLOCK (22.1 GiB) or sharding.accumulation=LAYERED (23.0 GiB)".
std::string RefusalText(const Refusal& refusal);

}  // namespace shale
