// Each pass on a program of about ten instructions, built by hand.
#include "engine/compile/step/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/program.h"
#include "kernels/ops/adafactor.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/update.h"
#include "tests/engine/compile/step/pass_fixture.h"
#include "tests/engine/compile/step/program_listing.h"

namespace shale::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// ProgramEdit and OverlapCollectives.

TEST_F(PassTest, GathersMoveAheadWithTheirBuffers) {
  const BufferId a = builder_.AddPersistent("a", 32), b = builder_.AddPersistent("b", 32),
                 c = builder_.AddPersistent("c", 32);
  builder_.Loop(2);
  for (const auto& [unit, shard, name] : {std::tuple(0, a, "A"), {1, b, "B"}, {2, c, "C"}}) {
    const BufferId full = Full(name), out = builder_.AddBuffer(absl::StrCat("out", unit), 32);
    Gather(unit, shard, full);
    Visit(unit, {builder_.Bytes(full)}, {builder_.Bytes(out)});
  }
  builder_.Once();
  builder_.Touch(kCompute, {builder_.Bytes(a)}, {});
  const StepProgram plain = builder_.Finish();
  const std::string op = "compute LayerNormForward";
  StepProgram program = plain;
  OverlapCollectives(program, 0);
  EXPECT_EQ(DumpProgram(program), DumpProgram(plain));
  OverlapCollectives(program, 1);
  EXPECT_THAT(Listing(program),
              ElementsAre("gather AllGather a", "gather AllGather b", op, "gather AllGather c", op, op, "|", op));
  EXPECT_THAT(Names(program), ElementsAre("a", "b", "c", "A", "B", "out0", "C", "out1", "out2"));
  EXPECT_TRUE(CheckStructure(program).ok());
  program = plain;
  OverlapCollectives(program, 7);
  EXPECT_THAT(Listing(program),
              ElementsAre("gather AllGather a", "gather AllGather b", "gather AllGather c", op, op, op, "|", op));
}

TEST_F(PassTest, AGatherNeverMovesIntoTheLoopOfAVisit) {
  const BufferId a = builder_.AddPersistent("a", 32), b = builder_.AddPersistent("b", 32);
  const BufferId full_a = Full("A"), out = builder_.AddBuffer("out", 32), full_b = Full("B");
  Gather(0, a, full_a);
  builder_.Loop(3);
  Visit(0, {builder_.Bytes(full_a)}, {builder_.Bytes(out)});
  builder_.Loop(3);
  Visit(1, {}, {builder_.Bytes(out)});  // Has no parameters, so nothing precedes its loop.
  builder_.Once();
  Gather(2, b, full_b);
  builder_.Loop(3);
  Visit(2, {builder_.Bytes(full_b)}, {});
  StepProgram program = builder_.Finish();
  OverlapCollectives(program, 1);
  const std::string op = "compute LayerNormForward";
  EXPECT_THAT(Listing(program),
              ElementsAre("gather AllGather a", "|", op, "|", "gather AllGather b", "|", op, "|", op));
  EXPECT_EQ(program.loops[2].repeat, 1);
}

TEST_F(PassTest, WhatIsReducedIsHeldWhileTheNextVisitRuns) {
  const BufferId shard = builder_.AddPersistent("shard", 32), other = builder_.AddPersistent("other", 32);
  const BufferId unit1 = Full("unit1"), unit0 = Full("unit0");
  const auto backward = [&](int unit, BufferId full, BufferId local) {
    Visit(unit, {}, {builder_.Bytes(full)}, Phase::kBackward);
    Instruction& reduce = builder_.Add(kReduce, Collective{.kind = CollectiveKind::kReduceScatterSum,
                                                           .local = Vector(local),
                                                           .full = Vector(full, DType::kFloat32, 16)});
    reduce.unit = unit;
    reduce.phase = Phase::kReduce;
  };
  builder_.Loop(2);
  backward(1, unit1, shard);
  backward(0, unit0, other);
  StepProgram program = builder_.Finish();
  OverlapCollectives(program, 1);
  EXPECT_EQ(program.buffers[unit1].held_until, 2);  // The backward of unit 0.
  EXPECT_EQ(program.buffers[unit0].held_until, -1);
}

// OffloadState.

TEST_F(PassTest, StateComesInOneGroupAheadAndGoesOutAtOnce) {
  std::vector<Group> groups;
  for (const char* name : {"a", "b", "c"}) groups.push_back(AddGroup(name, MemoryKind::kHost));
  const BufferId totals = builder_.AddBuffer("totals", 24);
  builder_.Loop(2);
  Visit(0, {}, {Vector(groups[0].gradient), Vector(groups[1].gradient), Vector(groups[2].gradient)}, Phase::kBackward);
  builder_.Once();
  Norm(groups[0], Row(totals));
  for (int i = 0; i < 3; ++i) UpdateGroup(i, groups[i], Row(totals));
  StepProgram program = builder_.Finish();
  OffloadState(program);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(Listing(program),
              ElementsAre("compute LayerNormForward", "|", "copy Fetch a.m", "copy Fetch b.m", "compute SumSquares",
                          "compute PrepareUpdate", "compute Lion", "copy Offload a.m", "copy Fetch c.m",
                          "compute PrepareUpdate", "compute Lion", "copy Offload b.m", "compute PrepareUpdate",
                          "compute Lion", "copy Offload c.m"));
}

// The first Copy widens the gradient. The last one makes the direction of the update, as that of Muon in bf16 does.
TEST_F(PassTest, WhatMakesADirectionReadsWhatComesInForItsUpdate) {
  std::vector<Group> groups;
  for (const char* name : {"a", "b", "c"}) groups.push_back(AddGroup(name, MemoryKind::kHost));
  const BufferId totals = builder_.AddBuffer("totals", 24), sums = builder_.AddBuffer("sums", 32);
  const BufferId widened = builder_.AddBuffer("widened", 32), direction = builder_.AddBuffer("direction", 32);
  Visit(0, {}, {Vector(groups[0].gradient), Vector(groups[1].gradient), Vector(groups[2].gradient)}, Phase::kBackward);
  builder_.Once();
  Norm(groups[0], Row(totals));
  for (int i = 0; i < 3; ++i) {
    UpdateGroup(i, groups[i], Row(totals));
    StepProgram& program = builder_.program();
    Instruction update = program.instructions.back();
    program.instructions.pop_back();
    std::get<Op>(update.action).As<Update>()->gradient_P = Vector(direction);
    Instruction widen = update, sum = update, scale = update, copy = update;
    const Tensor step = std::get<Op>(update.action).As<Update>()->update_5;
    widen.action = Op(Copy{.from = Vector(groups[i].gradient), .to = Vector(widened)});
    sum.action = Op(Adafactor{.gradient_P = Vector(widened), .sums = Vector(sums)});
    scale.action = Op(Adafactor{.stage = Adafactor::Stage::kScale,
                                .master_P = Vector(groups[i].moment),
                                .moments = Vector(sums),
                                .step_5 = step});
    copy.action = Op(Copy{.from = Vector(sums), .to = Vector(direction)});
    for (const Instruction& instruction : {widen, sum, scale, copy, update}) {
      program.instructions.push_back(instruction);
    }
  }
  StepProgram program = builder_.Finish();
  OffloadState(program);
  EXPECT_THAT(Listing(program),
              ElementsAre("compute LayerNormForward", "|", "copy Fetch a.m", "copy Fetch b.m", "compute SumSquares",
                          "compute PrepareUpdate", "compute Copy", "compute Adafactor", "compute Adafactor",
                          "compute Copy", "compute Lion", "copy Offload a.m", "copy Fetch c.m", "compute PrepareUpdate",
                          "compute Copy", "compute Adafactor", "compute Adafactor", "compute Copy", "compute Lion",
                          "copy Offload b.m", "compute PrepareUpdate", "compute Copy", "compute Adafactor",
                          "compute Adafactor", "compute Copy", "compute Lion", "copy Offload c.m"));
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr || !op->Is<Update>()) continue;
    const auto* scale = std::get<Op>((&instruction - 2)->action).As<Adafactor>();
    EXPECT_EQ(scale->master_P.where.symbol, op->As<Update>()->states[0].where.symbol);
    EXPECT_EQ(program.buffers[scale->master_P.where.symbol].memory, MemoryKind::kDevice);
  }
}

TEST_F(PassTest, StateOfAnUpdateInBackwardComesInBeforeTheVisitBefore) {
  const Group a = AddGroup("a", MemoryKind::kHost);
  const BufferId totals = builder_.AddBuffer("totals", 24), out = builder_.AddBuffer("out", 32);
  builder_.Loop(2);
  Visit(1, {}, {Vector(a.gradient)}, Phase::kBackward);
  Visit(0, {}, {Vector(out)}, Phase::kBackward);
  Norm(a, Row(totals));
  UpdateGroup(0, a, Row(totals));
  for (InstructionId id = 2; id < builder_.next(); ++id) builder_.program().instructions[id].last_iteration_only = true;
  builder_.Once();
  builder_.Touch(kCompute, {Vector(out)}, {});
  StepProgram program = builder_.Finish();
  OffloadState(program);
  EXPECT_THAT(Listing(program), ElementsAre("compute LayerNormForward", "copy Fetch a.m", "compute LayerNormForward",
                                            "compute SumSquares", "compute PrepareUpdate", "compute Lion",
                                            "copy Offload a.m", "|", "compute LayerNormForward"));
  EXPECT_TRUE(program.instructions[1].last_iteration_only);
  EXPECT_TRUE(program.instructions[6].last_iteration_only);
}

TEST_F(PassTest, WeightsComeInOneVisitAheadOfTheirGather) {
  const BufferId a = builder_.AddPersistent("a", 32), b = builder_.AddPersistent("b", 32);
  const BufferId full_a = Full("A"), full_b = Full("B"), whole = builder_.AddBuffer("whole", 32);
  for (const BufferId weight : {a, b}) builder_.program().buffers[weight].memory = MemoryKind::kHost;
  Gather(0, a, full_a);
  Visit(0, {builder_.Bytes(full_a)}, {});
  Gather(1, b, full_b);
  Visit(1, {builder_.Bytes(full_b)}, {});
  // One shard: the copy takes the place of the gather.
  builder_.Add(kGather, Collective{.local = Vector(a), .full = Vector(whole)}).unit = 2;
  StepProgram program = builder_.Finish();
  OffloadState(program);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(Listing(program),
              ElementsAre("copy Fetch a", "copy Fetch b", "gather AllGather a.fetched", "compute LayerNormForward",
                          "gather AllGather b.fetched", "compute LayerNormForward", "copy Fetch a"));
}

// UpdateOnHost.

TEST_F(PassTest, OnTheHostGradientsGoAheadAndWeightsComeBackOneGroupLater) {
  std::vector<Group> groups;
  std::vector<Tensor> host_weights;
  for (const char* name : {"a", "b", "c"}) {
    groups.push_back(AddGroup(name, MemoryKind::kHost));
    const BufferId weight = builder_.AddPersistent(absl::StrCat(name, ".w.host"), 32);
    builder_.program().buffers[weight].memory = MemoryKind::kHost;
    host_weights.push_back(Vector(weight));
  }
  const BufferId totals = builder_.AddBuffer("totals", 24);
  Visit(0, {}, {Vector(groups[0].gradient), Vector(groups[1].gradient), Vector(groups[2].gradient)}, Phase::kBackward);
  builder_.Loop(1);
  for (int i = 0; i < 3; ++i) UpdateGroup(i, groups[i], Row(totals));
  builder_.Touch(kCompute, {Vector(totals, DType::kFloat64, 3)}, {});
  StepProgram program = builder_.Finish();
  UpdateOnHost(program, host_weights);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(
      Listing(program),
      ElementsAre("compute LayerNormForward", "|", "copy Offload a.g.on_host", "copy Offload b.g.on_host",
                  "compute PrepareUpdate", "host Offload update.on_host", "host Lion",  //
                  "copy Offload c.g.on_host", "compute PrepareUpdate", "copy Fetch a.w.host",
                  "host Offload update.on_host", "host Lion", "compute PrepareUpdate", "copy Fetch b.w.host",
                  "host Offload update.on_host", "host Lion", "copy Fetch c.w.host", "compute LayerNormForward"));
}

// PackOnce and AddScratch.

TEST_F(PassTest, MatMulsOfALoopShareWhatTheFirstOnePacks) {
  const auto matrix = [&](BufferId buffer) {
    Tensor t = Tensor::Contiguous(DType::kFloat32, {4, 4});
    t.where.symbol = buffer;
    return t;
  };
  const BufferId x = builder_.AddBuffer("x", 64), w = builder_.AddBuffer("w", 64), y = builder_.AddBuffer("y", 64);
  const auto multiply = [&](BufferId a, BufferId b, BufferId c) {
    builder_.Add(kCompute, Op(MatMul{.a = matrix(a), .b = matrix(b), .c_MN = matrix(c)}));
  };
  builder_.Touch(kCompute, {}, {builder_.Bytes(x), builder_.Bytes(w)});
  builder_.Loop(3);
  multiply(x, w, y);
  multiply(y, w, y);
  multiply(x, y, y);  // Another b in each iteration.
  builder_.Once();
  multiply(x, w, y);
  StepProgram program = builder_.Finish();
  EXPECT_TRUE(PackOnce(program, PassOps(0)).ok());
  const auto packed = [&](InstructionId id) {
    return std::get<Op>(program.instructions[id].action).As<MatMul>()->packed_b;
  };
  ASSERT_TRUE(packed(1).present());
  EXPECT_EQ(packed(1).where, packed(2).where);
  EXPECT_FALSE(packed(3).present());
  EXPECT_FALSE(packed(4).present());
  EXPECT_TRUE(program.instructions[1].first_iteration_differs);
  EXPECT_FALSE(program.instructions[2].first_iteration_differs);
}

TEST_F(PassTest, ScratchLiesWhereTheOpRuns) {
  const BufferId x = builder_.AddBuffer("x", 32), y = builder_.AddBuffer("y", 32), z = builder_.AddHostBuffer("z", 32);
  builder_.Add(kCompute, Op(Copy{Vector(x), Vector(y)}));
  builder_.Add(StreamId::kHost, Op(Copy{Vector(z), Vector(z)}));
  StepProgram program = builder_.Finish();
  const PassOps host(60);
  EXPECT_TRUE(AddScratch(program, PassOps(100, &host)).ok());
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_EQ(program.instructions[0].scratch.extent_bytes(), 100);
  EXPECT_EQ(program.instructions[1].scratch.extent_bytes(), 60);
  EXPECT_THAT(Names(program), ElementsAre("x", "y", "scratch", "z", "scratch"));
}

// WithAmpleScratch.

TEST_F(PassTest, OpsOfTheDeviceGetTheScratchThatMakesThemFastest) {
  const BufferId x = builder_.AddBuffer("x", 32), y = builder_.AddBuffer("y", 32), z = builder_.AddHostBuffer("z", 32);
  builder_.Touch(kCompute, {}, {Vector(x)});  // Needs no scratch.
  builder_.Add(kCompute, Op(Copy{Vector(x), Vector(y)}));
  builder_.Add(StreamId::kHost, Op(Copy{Vector(z), Vector(z)}));
  StepProgram program = builder_.Finish();
  const PassOps host(60), ops(100, &host);
  ASSERT_TRUE(AddScratch(program, ops).ok());
  const std::string before = DumpProgram(program);
  EXPECT_FALSE(WithAmpleScratch(program, ops, 100).has_value());
  const std::optional<StepProgram> some = WithAmpleScratch(program, ops, 300),
                                   all = WithAmpleScratch(program, ops, 999);
  EXPECT_EQ(DumpProgram(program), before);
  ASSERT_TRUE(some && all);
  EXPECT_EQ(some->instructions[1].scratch.extent_bytes(), 300);
  EXPECT_EQ(all->instructions[1].scratch.extent_bytes(), 400);
  EXPECT_EQ(all->buffers[all->instructions[1].scratch.where.symbol].slot_bytes, 400);
  for (const auto& ample : {*some, *all}) {
    EXPECT_TRUE(CheckStructure(ample).ok()) << CheckStructure(ample);
    EXPECT_THAT(Listing(ample), Listing(program));
    EXPECT_THAT(Names(ample), Names(program));
    EXPECT_FALSE(ample.instructions[0].scratch.present());
    EXPECT_EQ(ample.instructions[2].scratch.extent_bytes(), 60);
  }
}

// OffloadActivations. in_place_test.cc has the programs of WorkInPlace.

TEST_F(PassTest, AnActivationWaitsForItsBackwardInHostMemory) {
  const BufferId kept = builder_.AddBuffer("kept", 32), soon = builder_.AddBuffer("soon", 32);
  for (const BufferId b : {kept, soon}) builder_.program().buffers[b].category = BufferCategory::kActivations;
  builder_.Loop(2);
  Visit(0, {}, {Vector(kept)});
  Visit(1, {}, {});
  Visit(2, {}, {Vector(soon)});
  Visit(3, {}, {});
  Visit(2, {Vector(soon)}, {}, Phase::kBackward);
  Visit(1, {}, {}, Phase::kBackward);
  Visit(0, {Vector(kept)}, {}, Phase::kBackward);
  builder_.Once();
  builder_.Touch(kCompute, {}, {});
  StepProgram program = builder_.Finish();
  EXPECT_TRUE(OffloadActivations(program, {"*"}).ok());
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  const std::string op = "compute LayerNormForward";
  // It comes back one visit ahead of its use, into another buffer. `soon` is used again too soon.
  EXPECT_THAT(Listing(program),
              ElementsAre(op, "copy Offload kept", op, op, op, op, "copy Fetch kept", op, op, "|", op));
  EXPECT_THAT(Names(program), ElementsAre("kept", "soon", "kept", "kept.fetched"));
  EXPECT_EQ(program.buffers[kept].held_until, 2);  // While the next visit runs.
}

// ListPasses.

// A new pass says in its own test when it applies, and does not change this one.
TEST_F(PassTest, OptionsSayWhichPassesApply) {
  const Group group = AddGroup("a", MemoryKind::kDevice);
  const BufferId totals = builder_.AddBuffer("totals", 24);
  StepProgram evaluation = builder_.Finish();
  UpdateGroup(0, group, Row(totals));
  StepProgram training = builder_.Finish();
  const PassOps ops(0);
  const auto passes = [&](const StepOptions& options, StepProgram& program) {
    std::vector<std::string> names;
    for (const Pass& pass : ListPasses(options, JobState(), ops, WorkLimits(), program)) {
      if (pass.applies) names.emplace_back(pass.name);
    }
    return names;
  };
  const std::vector<std::string> here = {"UpdateInBackward",   "GatherFloat8", "OverlapCollectives", "UpdateOnHost",
                                         "OffloadState",       "QuantizeOnce", "PackOnce",           "AddScratch",
                                         "OffloadActivations", "WorkInPlace"};
  const auto among_these = [&](std::vector<std::string> names) {
    std::erase_if(names,
                  [&](const std::string& name) { return std::find(here.begin(), here.end(), name) == here.end(); });
    return names;
  };
  EXPECT_THAT(among_these(passes({.prepares_weights_once = false}, training)),
              ElementsAre("GatherFloat8", "OverlapCollectives", "AddScratch", "WorkInPlace"));
  const StepOptions all = {.accumulation = Accumulation::kLayered,
                           .offload_state = {.parameters = true},
                           .update_device = UpdateDevice::kHost,
                           .activations = {.offload = {"*"}},
                           .update = UpdateTime::kInBackward};
  EXPECT_THAT(among_these(passes(all, training)), ElementsAreArray(here));
  EXPECT_THAT(passes({.prepares_weights_once = false, .reduce = DType::kBFloat16}, training),
              Contains("RoundInBackward"));
  // Programs that update nothing have weights to copy, and no updates to move.
  EXPECT_THAT(among_these(passes(all, evaluation)), ElementsAre("GatherFloat8", "OverlapCollectives", "OffloadState",
                                                                "AddScratch", "OffloadActivations", "WorkInPlace"));
}

}  // namespace
}  // namespace shale::testing
