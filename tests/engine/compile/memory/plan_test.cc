#include "engine/compile/memory/plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "absl/strings/match.h"
#include "kernels/ops/norm.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/memory/random_program.h"

namespace shale::testing {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

MemoryPlan Plan(const StepProgram& program, const MemoryPlanOptions& options = {}) {
  absl::StatusOr<MemoryPlan> plan = PlanMemory(program, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : MemoryPlan();
}

bool Counts(const StepProgram& program, const std::vector<Lifetime>& lifetimes, size_t b) {
  return program.buffers[b].persistent || lifetimes[b].used();
}

TEST(PlanMemory, BuffersAliveTogetherNeverShareBytes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const StepProgram program = RandomProgram(seed, {.instructions = 60});
    const MemoryPlanOptions options{.alignment_bytes = seed % 3 == 0 ? 256 : 2,
                                    .red_zone_bytes = seed % 2 == 0 ? 0 : 64};
    const MemoryPlan plan = Plan(program, options);
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    for (size_t a = 0; a < program.buffers.size(); ++a) {
      if (!Counts(program, lifetimes, a)) {
        EXPECT_EQ(plan.addresses[a], 0);
        continue;
      }
      const int64_t end = plan.addresses[a] + program.buffers[a].size_bytes();
      EXPECT_EQ(plan.addresses[a] % options.alignment_bytes, 0);
      const bool host = program.buffers[a].memory == MemoryKind::kHost;
      EXPECT_GE(plan.addresses[a], host ? kHostMemoryBegin : 0);
      EXPECT_LE(end, host ? kHostMemoryBegin + plan.host_bytes : plan.peak_bytes);
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (a == b || !Counts(program, lifetimes, b)) continue;
        if (lifetimes[a].last < lifetimes[b].first || lifetimes[b].last < lifetimes[a].first) continue;
        if (plan.addresses[b] < plan.addresses[a]) continue;
        ASSERT_LE(end + options.red_zone_bytes, plan.addresses[b])
            << "seed " << seed << ": " << program.buffers[a].name << " and " << program.buffers[b].name;
      }
    }
  }
}

TEST(PlanMemory, TheLowerBoundIsTheLargestSumOfLiveBuffers) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const StepProgram program = RandomProgram(seed, {.instructions = 40});
    const MemoryPlan plan = Plan(program);
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    int64_t largest = -1;
    InstructionId at = 0;
    for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
      int64_t live = 0;
      for (size_t b = 0; b < lifetimes.size(); ++b) {
        if (program.buffers[b].memory == MemoryKind::kHost) continue;
        if (lifetimes[b].first <= id && id <= lifetimes[b].last) live += program.buffers[b].size_bytes();
      }
      if (live <= largest) continue;
      largest = live;
      at = id;
    }
    EXPECT_EQ(plan.lower_bound_bytes, largest);
    EXPECT_EQ(plan.peak_instruction, at);
    EXPECT_GE(plan.peak_bytes, largest);
    EXPECT_EQ(std::accumulate(plan.bytes_at_peak.begin(), plan.bytes_at_peak.end(), int64_t{0}), largest);
    ASSERT_LE(plan.largest_at_peak.size(), 12);
    for (size_t i = 0; i < plan.largest_at_peak.size(); ++i) {
      const BufferId b = plan.largest_at_peak[i];
      EXPECT_TRUE(lifetimes[b].first <= at && at <= lifetimes[b].last);
      if (i == 0) continue;
      EXPECT_GE(program.buffers[plan.largest_at_peak[i - 1]].size_bytes(), program.buffers[b].size_bytes());
    }
  }
}

TEST(PlanMemory, PersistentBuffersLieAtTheSameAddressesInAllPrograms) {
  const auto persistent = [](ProgramBuilder& b) {
    for (int64_t bytes : {100, 300, 8}) b.AddPersistent("p", bytes);
  };
  ProgramBuilder one, two;
  persistent(one);
  const BufferId x = one.AddBuffer("x", 1000);
  one.Touch(kCompute, {one.Bytes(2)}, {one.Bytes(x)});
  persistent(two);
  two.Touch(kCompute, {}, {});
  const MemoryPlan a = Plan(one.Finish()), b = Plan(two.Finish());
  EXPECT_EQ(b.addresses, (std::vector<int64_t>{0, 256, 768}));
  EXPECT_EQ(std::vector(a.addresses.begin(), a.addresses.begin() + 3), b.addresses);
  EXPECT_EQ(a.persistent_bytes, 1024);
  EXPECT_EQ(b.persistent_bytes, 1024);
  EXPECT_EQ(b.peak_bytes, 776);
  EXPECT_EQ(a.addresses[x], 1024);
  EXPECT_EQ(a.peak_bytes, 2024);
  EXPECT_EQ(a.lower_bound_bytes, 1408);
}

TEST(PlanMemory, PersistentBuffersInHostMemoryComeBeforeTheTransientOnes) {
  ProgramBuilder b;
  const BufferId first = b.AddPersistent("p", 100), kept = b.AddHostBuffer("h", 300), second = b.AddPersistent("q", 50);
  StepProgram program = b.Finish();
  program.buffers[kept].persistent = true;
  EXPECT_EQ(Plan(program).persistent_bytes, 512);
  EXPECT_EQ(Plan(program).persistent_host_bytes, 512);

  ProgramBuilder c;
  for (const char* name : {"p", "h", "q"}) c.AddPersistent(name, name[0] == 'h' ? 300 : name[0] == 'p' ? 100 : 50);
  const BufferId x = c.AddBuffer("x", 40), host = c.AddHostBuffer("y", 40);
  c.Touch(kCompute, {}, {c.Bytes(x)});
  program = c.Finish();
  program.buffers[kept].memory = MemoryKind::kHost;
  program.instructions.push_back(
      {.action = Transfer{.device = c.Bytes(x), .host = c.Bytes(host), .to_host = true}, .stream = StreamId::kCopy});
  program.loops.back().end += 1;
  const MemoryPlan plan = Plan(program);
  EXPECT_EQ(plan.addresses[first], 0);
  EXPECT_EQ(plan.addresses[second], 256);
  EXPECT_EQ(plan.addresses[x], 512);
  EXPECT_EQ(plan.addresses[kept], kHostMemoryBegin);
  EXPECT_EQ(plan.addresses[host], kHostMemoryBegin + 512);
  EXPECT_EQ(plan.host_bytes, 552);
  EXPECT_EQ(plan.peak_bytes, 552);
  // Host memory takes no room in the arena.
  EXPECT_EQ(plan.lower_bound_bytes, 190);
}

TEST(PlanMemory, BuffersThatNobodyUsesTakeNothing) {
  ProgramBuilder b;
  b.AddBuffer("unused", kMost - 1000);
  const BufferId used = b.AddBuffer("used", 10);
  b.Touch(kCompute, {}, {b.Bytes(used)});
  const MemoryPlan plan = Plan(b.Finish());
  EXPECT_EQ(plan.peak_bytes, 10);
  EXPECT_EQ(plan.lower_bound_bytes, 10);
}

TEST(PlanMemory, RedZonesFollowBuffersButNotThePeak) {
  ProgramBuilder b;
  b.AddPersistent("p", 256);
  const BufferId x = b.AddBuffer("x", 255), y = b.AddBuffer("y", 10);
  b.Touch(kCompute, {}, {b.Bytes(y), b.Bytes(x, 0, 254)});
  const MemoryPlan plan = Plan(b.Finish(), {.red_zone_bytes = 1});
  EXPECT_EQ(plan.persistent_bytes, 512);
  EXPECT_EQ(plan.addresses[x], 512);
  EXPECT_EQ(plan.addresses[y], 768);
  EXPECT_EQ(plan.peak_bytes, 778);
}

TEST(PlanMemory, DoesNotDependOnTheNumberOfMicroBatches) {
  StepProgram program = LayeredProgram(5, 3);
  std::vector<int64_t> addresses;
  for (int64_t k : {1, 2, 7, 1'000'000}) {
    program.loops[0].repeat = k;
    const MemoryPlan plan = Plan(program);
    if (addresses.empty()) addresses = plan.addresses;
    EXPECT_EQ(plan.addresses, addresses) << k;
  }
}

TEST(PlanMemory, OfAProgramWithoutInstructionsIsItsPersistentBuffers) {
  ProgramBuilder b;
  b.AddPersistent("p", 5000);
  const MemoryPlan plan = Plan(b.Finish());
  EXPECT_EQ(plan.peak_bytes, 5000);
  EXPECT_EQ(plan.lower_bound_bytes, 5000);
  EXPECT_EQ(plan.largest_at_peak.size(), 1);
}

TEST(PlanMemory, AStepOfThousandsOfBuffersIsWithinOnePercentOfTheLowerBound) {
  for (int layers : {3, 40, 300}) {
    const StepProgram program = LayeredProgram(layers, layers);
    const MemoryPlan plan = Plan(program);
    EXPECT_LE(plan.peak_bytes, plan.lower_bound_bytes + plan.lower_bound_bytes / 100) << layers;
  }
}

TEST(PlanMemory, RefusesBytesThatDoNotFitInt64) {
  ProgramBuilder slots;
  slots.AddBuffer("kept", kMost / 4, 5);
  EXPECT_EQ(PlanMemory(slots.Finish(), {}).status().message(),
            "buffer kept needs 5 slots of 2305843009213693951 bytes: more than 2^63 bytes");

  ProgramBuilder sum;
  sum.AddPersistent("a", kMost / 2);
  sum.AddPersistent("b", kMost / 2);
  sum.AddPersistent("c", 10);
  const absl::Status status = PlanMemory(sum.Finish(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "the buffers of one rank sum to more than 2^63 bytes at b (1 slots of 4611686018427387903 bytes)");

  ProgramBuilder alignment;
  alignment.AddPersistent("a", kMost - 10);
  EXPECT_FALSE(PlanMemory(alignment.Finish(), {}).ok());
  EXPECT_TRUE(PlanMemory(alignment.Finish(), {.alignment_bytes = 1}).ok());
}

TEST(PlanMemory, RefusesMalformedPrograms) {
  const auto message = [](const auto& edit) {
    ProgramBuilder b;
    const BufferId x = b.AddBuffer("x", 100);
    b.Touch(kCompute, {}, {b.Bytes(x)});
    StepProgram program = b.Finish();
    edit(program);
    return std::string(PlanMemory(program, {}).status().message());
  };
  const auto y = [](StepProgram& p) -> Tensor& {
    return std::get<Op>(p.instructions[0].action).As<LayerNormForward>()->sum;
  };
  EXPECT_EQ(
      message([&](StepProgram& p) { y(p).where.symbol = 1; }),
      "instruction 0 (LayerNormForward, compute stream, forward): operand sum i16[50] lies in buffer 1; there are 1");
  EXPECT_EQ(
      message([&](StepProgram& p) { y(p).where.offset_bytes = 2; }),
      "instruction 0 (LayerNormForward, compute stream, forward): operand sum i16[50] needs 100 bytes at byte 2 of "
      "buffer x, which has 100");
  EXPECT_EQ(
      message([&](StepProgram& p) { p.buffers[0].slots = 3; }),
      "instruction 0 (LayerNormForward, compute stream, forward): operand sum i16[50] lies in buffer x with a slot "
      "for each of 3 micro-batches; the instruction is of micro-batch -1 in a loop of 1 iterations");
  EXPECT_EQ(message([&](StepProgram& p) { p.loops.clear(); }), "the loops end at instruction 0; wanted 1");
  EXPECT_EQ(message([&](StepProgram& p) { p.loops[0].repeat = 0; }),
            "the loop at instruction 0 repeats 0 times; wanted at least once");
  EXPECT_EQ(message([&](StepProgram& p) { p.loops[0].begin = 1; }),
            "a loop covers instructions [1, 1); wanted one that begins at 0 and ends by 1");
  EXPECT_EQ(message([&](StepProgram& p) { p.buffers[0].held_until = 1; }), "buffer x is held until instruction 1 of 1");
  EXPECT_EQ(message([&](StepProgram& p) { p.buffers[0].slot_bytes = -1; }), "buffer x has 1 slots of -1 bytes");
}

TEST(PlanMemory, RefusesNonsenseOptions) {
  const StepProgram program = ProgramBuilder().Finish();
  EXPECT_FALSE(PlanMemory(program, {.alignment_bytes = 0}).ok());
  EXPECT_FALSE(PlanMemory(program, {.alignment_bytes = kMost}).ok());
  EXPECT_FALSE(PlanMemory(program, {.red_zone_bytes = -1}).ok());
}

TEST(PlanMemory, HostMemoryIsPackedByItself) {
  ProgramBuilder b;
  const BufferId x = b.AddBuffer("x", 1000), early = b.AddHostBuffer("early", 1000), y = b.AddBuffer("y", 200),
                 late = b.AddHostBuffer("late", 200), z = b.AddBuffer("z", 1000);
  b.Touch(StreamId::kCompute, {}, {b.Bytes(x)});
  b.Add(StreamId::kCopy, Transfer{b.Bytes(x), b.Bytes(early), true});
  b.Add(StreamId::kCopy, Transfer{b.Bytes(z), b.Bytes(early), false});
  b.Touch(StreamId::kCompute, {b.Bytes(z)}, {b.Bytes(y)});
  b.Add(StreamId::kCopy, Transfer{b.Bytes(y), b.Bytes(late), true});
  StepProgram program = b.Finish();
  const MemoryPlan plan = Plan(program);
  EXPECT_EQ(plan.addresses[early], kHostMemoryBegin);
  EXPECT_EQ(plan.addresses[late], kHostMemoryBegin);
  EXPECT_EQ(plan.host_bytes, 1000);
  EXPECT_LT(plan.peak_bytes, 3000);
  EXPECT_EQ(plan.lower_bound_bytes, 1200);
  // Host memory has less room, because its addresses begin at 2^62.
  for (const BufferId buffer : {x, early}) program.buffers[buffer].slot_bytes = (int64_t{1} << 62) + 2;
  const absl::Status refused = PlanMemory(program, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(refused.message(), "more than 2^62 bytes at early ")) << refused;
}

}  // namespace
}  // namespace shale::testing
