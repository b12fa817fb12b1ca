// Breaks planned programs in small ways and compares CheckProgram with FindViolation, which compares every pair of
// issues of every iteration. CheckProgram must refuse what FindViolation refuses, and nothing else.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/compile/memory/plan.h"
#include "tests/engine/compile/memory/random_program.h"
#include "tests/engine/compile/memory/unrolled.h"

namespace shale::testing {
namespace {

struct Planned {
  StepProgram program;
  MemoryPlan plan;
};

Planned PlanRandom(uint64_t seed) {
  const RandomProgramOptions options{.instructions = 24, .largest_repeat = 7, .largest_buffer_bytes = 100};
  Planned planned{.program = RandomProgram(seed, options)};
  planned.plan = *PlanMemory(planned.program, {.alignment_bytes = 2});
  DeriveWaits(planned.program, planned.plan);
  return planned;
}

// Calls mutate(planned, random) on copies of random programs; `mutate` returns false if there is nothing to break.
// Returns the fraction of the mutants that are wrong.
template <class Mutate>
double RefusedFraction(int programs, int mutants_each, Mutate mutate) {
  int made = 0, wrong = 0;
  for (int seed = 0; seed < programs; ++seed) {
    const Planned original = PlanRandom(seed);
    for (int m = 0; m < mutants_each; ++m) {
      std::mt19937_64 random(1000 * seed + m);
      Planned mutant = original;
      if (!mutate(mutant, random)) continue;
      const std::string violation = FindViolation(mutant.program, mutant.plan);
      const absl::Status status = CheckProgram(mutant.program, mutant.plan);
      // With more than 5 iterations the check treats those in the middle as one, which includes the gaps between their
      // slots. It may then refuse more.
      const bool exact = original.program.micro_batches <= 5;
      EXPECT_TRUE(violation.empty() ? status.ok() || !exact : !status.ok())
          << "program " << seed << ", mutant " << m << ": wanted \"" << violation << "\", found " << status;
      ++made;
      wrong += !violation.empty();
    }
  }
  EXPECT_GT(made, programs);
  return static_cast<double>(wrong) / std::max(1, made);
}

// Sets the instruction and the index of a random wait. Returns false if there is none.
bool PickWait(StepProgram& program, std::mt19937_64& random, Instruction*& instruction, size_t& place) {
  std::vector<std::pair<Instruction*, size_t>> waits;
  for (Instruction& i : program.instructions) {
    for (size_t w = 0; w < i.waits.size(); ++w) waits.push_back({&i, w});
  }
  if (waits.empty()) return false;
  std::tie(instruction, place) = waits[random() % waits.size()];
  return true;
}

TEST(Mutation, ARemovedWaitIsFoundWhereItIsNeeded) {
  const double refused = RefusedFraction(50, 6, [](Planned& planned, std::mt19937_64& random) {
    Instruction* instruction = nullptr;
    size_t place = 0;
    if (!PickWait(planned.program, random, instruction, place)) return false;
    instruction->waits.erase(instruction->waits.begin() + place);
    return true;
  });
  // In loops, a wait that only the first iteration needs may be implied in all iterations by a wait that the others
  // need.
  EXPECT_GT(refused, 0.9);
}

TEST(Mutation, AMovedAddressIsFoundWhereItMeetsALiveBuffer) {
  const double refused = RefusedFraction(50, 6, [](Planned& planned, std::mt19937_64& random) {
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(planned.program);
    const size_t moved = random() % planned.program.buffers.size(), onto = random() % planned.program.buffers.size();
    if (moved == onto || !lifetimes[moved].used() || !lifetimes[onto].used()) return false;
    if (lifetimes[moved].last < lifetimes[onto].first || lifetimes[onto].last < lifetimes[moved].first) return false;
    if (planned.program.buffers[moved].memory != planned.program.buffers[onto].memory) return false;
    const int64_t address = planned.plan.addresses[onto];
    const bool host = planned.program.buffers[moved].memory == MemoryKind::kHost;
    const int64_t end = host ? kHostMemoryBegin + planned.plan.host_bytes : planned.plan.peak_bytes;
    if (address + planned.program.buffers[moved].size_bytes() > end) return false;
    planned.plan.addresses[moved] = address;
    return true;
  });
  EXPECT_GT(refused, 0.6);
}

TEST(Mutation, ARedirectedWaitIsFoundWhereItNoLongerHelps) {
  const double refused = RefusedFraction(50, 6, [](Planned& planned, std::mt19937_64& random) {
    Instruction* instruction = nullptr;
    size_t place = 0;
    if (!PickWait(planned.program, random, instruction, place)) return false;
    instruction->waits[place] = static_cast<InstructionId>(random() % planned.program.instructions.size());
    return true;
  });
  EXPECT_GT(refused, 0.6);
}

TEST(Mutation, AMovedBufferIsFoundWhereItsBytesAreInUseAlthoughWaitsOrderAll) {
  // Simulates a planner that forgot a rule of lifetimes.
  RefusedFraction(50, 6, [](Planned& planned, std::mt19937_64& random) {
    const size_t moved = random() % planned.program.buffers.size();
    if (planned.program.buffers[moved].memory == MemoryKind::kHost) return false;
    const int64_t room = planned.plan.peak_bytes - planned.program.buffers[moved].size_bytes();
    if (room <= 0) return false;
    planned.plan.addresses[moved] = static_cast<int64_t>(random() % room) / 2 * 2;
    DeriveWaits(planned.program, planned.plan);
    return true;
  });
}

}  // namespace
}  // namespace shale::testing
