// What the laws of steps have in common: runs that must succeed, and runs that must agree.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {

// Runs the job. Reports a failure to GoogleTest, and returns an empty result then.
RunResult MustRun(const RunOptions& options, const std::vector<Tokens>& batches);
RunResult MustRun(const RunOptions& options, const Tokens& tokens);

// Calls visit(op, instruction) for each op of a kind in the program.
template <class Kind, class Visitor>
void ForEachOp(const StepProgram& program, Visitor&& visit) {
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    if (const Kind* found = op == nullptr ? nullptr : op->As<Kind>()) visit(*found, instruction);
  }
}

// How weights are stored. kStoredWeights begins with those that have masters.
struct StoredWeights {
  DType dtype;
  MasterWeights master;
};
inline constexpr StoredWeights kStoredWeights[] = {{DType::kFloat32, MasterWeights::kFloat32},
                                                   {DType::kBFloat16, MasterWeights::kFloat32},
                                                   {DType::kBFloat16, MasterWeights::kSplit},
                                                   {DType::kBFloat16, MasterWeights::kNone}};

// Numbers the jobs of two steps of all combinations, meshes, `stored` weights, times of the update and micro-batches
// from 1, and calls visit(number, options, tokens, name) for every `every`th.
using VisitUpdate = std::function<void(int, RunOptions, const Tokens&, const std::string&)>;
void ForEachUpdate(int every, absl::Span<const StoredWeights> stored, const VisitUpdate& visit);

// Returns options of bf16 weights with this rule. With `lean` there are no masters, and the moments are bf16.
RunOptions OptionsOf(const OptimizerEntry& entry, bool lean, MasterWeights master);

// Expects of every strategy and accumulation, with three ranks and on a mesh of 2 x 2, that parameters for which
// `trains` returns false keep their first values to the bit and the others do not; that loss, norm and gradients of the
// first step are those of one rank, but for the order of sums; and that each run needs the memory that was planned.
void ExpectRanksAgree(RunOptions options, const Tokens& tokens, const std::function<bool(const std::string&)>& trains);

// Expects that a run gives the losses, gradients and weights of NO_SYNC to the bit with LAYERED, with every preset of
// activation checkpointing in segments of up to `most_blocks` blocks, and with offloaded activations; and that each run
// needs the memory that was planned. On backends that do not test every combination a third of the presets runs.
// `more` gets the options, and a function that runs them and compares, for further settings of activations.
void ExpectSchedulesAgree(
    RunOptions options, const Tokens& tokens, int64_t most_blocks,
    const std::function<void(RunOptions&, const std::function<void(const std::string&)>&)>& more = nullptr);

}  // namespace shale::testing
