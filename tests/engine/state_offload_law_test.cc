// The laws of state in host memory: where the state lies between its uses must not change what a step computes, and the
// arena holds the state of at most two groups at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/compile/program/live_bytes.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// Returns what the options can offload, all at once and part by part.
std::vector<StateOffload> Offloads(const RunOptions& options) {
  const bool masters = options.dtype != DType::kFloat32, parameters = options.step.strategy == Strategy::kFullShard;
  std::vector<StateOffload> offloads = {{true, masters, parameters}};
  if (!TestsEveryCombination()) return offloads;
  if (masters || parameters) offloads.push_back({.moments = true});
  if (masters) offloads.push_back({.masters = true});
  if (parameters) offloads.push_back({.parameters = true});
  return offloads;
}

DecoderConfig TiedDecoder() {
  DecoderConfig tied = SmallDecoder();
  tied.tied_head = true;
  return tied;
}

TEST(StateOffloadLaws, StateInHostMemoryChangesNoBits) {
  const absl::Span<const StoredWeights> with_masters = absl::MakeSpan(kStoredWeights).first(3);
  // One job in five or in 23 reaches every value of every field.
  ForEachUpdate(TestsEveryCombination() ? 5 : 23, with_masters,
                [](int job, RunOptions options, const Tokens& tokens, const std::string& name) {
                  options.model = job % 2 == 0 ? SmallDecoder() : TiedDecoder();
                  options.step.clipping = job % 5 < 2 ? Clipping::kGlobal : static_cast<Clipping>(1 + job % 2);
                  options.reads_gradients = false;
                  const RunResult on_device = MustRun(options, tokens);
                  for (const StateOffload& offload : Offloads(options)) {
                    options.step.offload_state = offload;
                    const RunResult offloaded = MustRun(options, tokens);
                    const std::string what = absl::StrCat(name, " ", ToString(offload));
                    ASSERT_EQ(on_device.losses.size(), 2) << what;
                    EXPECT_EQ(offloaded.losses, on_device.losses) << what;
                    EXPECT_EQ(offloaded.norms, on_device.norms) << what;
                    EXPECT_EQ(offloaded.weights, on_device.weights) << what;
                    EXPECT_EQ(offloaded.measured_peak_bytes, offloaded.plan.peak_bytes) << what;
                  }
                });
}

TEST(StateOffloadLaws, AllOptimizersUpdateTheSameBits) {
  for (const OptimizerEntry& entry : Optimizers()) {
    for (bool lean : {false, true}) {
      RunOptions options = OptionsOf(entry, lean, MasterWeights::kSplit);
      options.step.mesh = {.shard = 3};
      options.steps = 3;
      const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 32);
      const RunResult on_device = MustRun(options, tokens);
      ASSERT_EQ(on_device.losses.size(), 3);
      options.step.offload_state = {.moments = options.step.has_states(), .masters = !lean, .parameters = lean};
      const RunResult offloaded = MustRun(options, tokens);
      EXPECT_EQ(offloaded.losses, on_device.losses) << entry.name << " " << lean;
      EXPECT_EQ(offloaded.weights, on_device.weights) << entry.name << " " << lean;
    }
  }
}

// The stages of a composed optimizer compute with the copies of its state. A small decoder of one layer, because CUDA's
// emulator runs this too. In bf16 everywhere, so that gradients are widened before the stages, and directions after.
TEST(StateOffloadLaws, ComposedOptimizersUpdateTheSameBits) {
  DecoderConfig model = SmallDecoder();
  model.layers = 1;
  model.width = model.hidden = 8;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_width = 4;
  int composed = 0;
  for (const OptimizerEntry& entry : Optimizers()) {
    if (!entry.composed) continue;
    ++composed;
    Hyperparameters h = entry.defaults;
    h.moments = DType::kBFloat16;
    if (entry.kind == OptimizerKind::kAdafactor) h.beta1 = 0.9f;  // Without, it has no state that is offloaded.
    RunOptions options;
    options.model = model;
    options.dtype = DType::kBFloat16;
    options.step.master = MasterWeights::kNone;
    options.step.optimizer = MakeOptimizer(entry.kind, h);
    options.step.mesh = {.shard = 2};
    options.step.gradient_shards = DType::kBFloat16;
    options.reads_gradients = false;
    options.steps = 2;
    const Tokens tokens = RandomTokens(2, 5, model.vocabulary, 35);
    const RunResult on_device = MustRun(options, tokens);
    ASSERT_EQ(on_device.losses.size(), 2) << entry.name;
    options.step.offload_state = {.moments = true, .parameters = true};
    const RunResult offloaded = MustRun(options, tokens);
    EXPECT_EQ(offloaded.losses, on_device.losses) << entry.name;
    EXPECT_EQ(offloaded.weights, on_device.weights) << entry.name;
    EXPECT_GT(offloaded.plan.persistent_host_bytes, 0) << entry.name;
  }
  EXPECT_EQ(composed, 2);
}

// Returns, by buffer, the group whose state is copied into it from host memory, or -1.
std::vector<int> GroupsOfFetched(const RunResult& result) {
  std::vector<int> groups(result.step.program.buffers.size(), -1);
  for (const Instruction& instruction : result.step.program.instructions) {
    const auto* transfer = std::get_if<Transfer>(&instruction.action);
    if (transfer == nullptr || transfer->to_host || instruction.phase != Phase::kUpdate) continue;
    for (size_t i = 0; i < result.step.state.groups.size(); ++i) {
      const GroupState& g = result.step.state.groups[i];
      const auto is = [&](const Tensor& t) { return t.present() && t.where.symbol == transfer->host.where.symbol; };
      if (is(g.own_weight) || is(g.master) || is(g.low) || std::any_of(g.states.begin(), g.states.end(), is)) {
        groups[transfer->device.where.symbol] = static_cast<int>(i);
      }
    }
  }
  return groups;
}

TEST(StateOffloadLaws, TheArenaHoldsTheStateOfAtMostTwoGroups) {
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    for (int64_t ranks : {1, 2}) {
      RunOptions options;
      DecoderConfig model = SmallDecoder();
      model.layers = 6;
      options.model = model;
      options.dtype = DType::kBFloat16;
      options.step.accumulation = Accumulation::kLayered;
      options.step.mesh = {.shard = ranks};
      options.step.update = update;
      options.reads_gradients = false;
      const Tokens tokens = RandomTokens(2 * ranks, 11, model.vocabulary, 33);
      const RunResult on_device = MustRun(options, tokens);
      options.step.offload_state = {.moments = true, .masters = true};
      const RunResult offloaded = MustRun(options, tokens);
      ASSERT_FALSE(offloaded.losses.empty());
      // The bytes that left the arena are exactly those in host memory.
      EXPECT_GT(offloaded.plan.persistent_host_bytes, 0);
      EXPECT_EQ(offloaded.plan.persistent_bytes + offloaded.plan.persistent_host_bytes,
                on_device.plan.persistent_bytes);
      const std::vector<int> groups = GroupsOfFetched(offloaded);
      const std::vector<Lifetime> lifetimes = ComputeLifetimes(offloaded.step.program);
      std::vector<std::vector<size_t>> fetched(offloaded.step.state.groups.size());
      for (size_t b = 0; b < groups.size(); ++b) {
        if (groups[b] >= 0) fetched[groups[b]].push_back(b);
      }
      for (const std::vector<size_t>& buffers : fetched) EXPECT_EQ(buffers.size(), 3);  // Masters, m and v.
      for (size_t id = 0; id < offloaded.step.program.instructions.size(); ++id) {
        int held = 0;
        for (const std::vector<size_t>& buffers : fetched) {
          held += std::any_of(buffers.begin(), buffers.end(), [&](size_t b) {
            return lifetimes[b].first <= static_cast<InstructionId>(id) &&
                   static_cast<InstructionId>(id) <= lifetimes[b].last;
          });
        }
        EXPECT_LE(held, 2) << ToString(update) << " W=" << ranks << " instruction " << id;
      }
      EXPECT_LT(offloaded.plan.peak_bytes, on_device.plan.peak_bytes) << ToString(update) << " W=" << ranks;
    }
  }
}

TEST(StateOffloadLaws, WhatAJobDoesNotHaveIsRefused) {
  const Tokens tokens = RandomTokens(2, 11, SmallDecoder().vocabulary, 34);
  const auto refusal = [&](const RunOptions& options) { return RunJob(options, tokens).status(); };
  RunOptions options;
  options.step.offload_state = {.masters = true};
  EXPECT_EQ(refusal(options), absl::InvalidArgumentError(
                                  "MASTERS cannot be offloaded: the weights are their own masters; leave it out, or "
                                  "use compute BF16 with master MASTER_FP32 or SPLIT, or compute FP16"));
  options.step.offload_state = {.parameters = true};
  options.step.strategy = Strategy::kZero2;
  EXPECT_EQ(refusal(options),
            absl::InvalidArgumentError("PARAMETERS cannot be offloaded: strategy ZERO2 uses the weights where they "
                                       "lie; use FULL_SHARD, which gathers them for each use, or leave it out"));
  options.step.offload_state = {.moments = true};
  Hyperparameters h = EntryOf(OptimizerKind::kSgd).defaults;
  h.momentum = 0;
  options.step.optimizer = MakeOptimizer(OptimizerKind::kSgd, h);
  EXPECT_EQ(refusal(options),
            absl::InvalidArgumentError("MOMENTS cannot be offloaded: the optimizer keeps no states; leave it out"));
}

}  // namespace
}  // namespace shale::testing
