// The clock: runs a step program on paper, from the time that each instruction takes by itself.
//
// Streams run their instructions in order, and each instruction begins when those that it waits for have finished, as
// on a device. Instructions that run at the same time share the machine: where they ask for more of a resource than
// there is, all of them slow down by the same factor. One rank is simulated, because all run the same program.
//
// A loop of K iterations takes as long to simulate as one of five. Its iterations soon repeat with a constant period,
// and one of them stands for those that are not simulated.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/compile/program/issues.h"
#include "engine/compile/program/program.h"

namespace shale {

// What instructions that run at the same time share.
enum class Resource : uint8_t {
  kProcessors,   // The multiprocessors of a GPU, or the cores of a rank.
  kMemory,       // The bandwidth of the memory of the device.
  kDeviceLinks,  // Between the GPUs of a host.
  kHostLinks,    // Between hosts.
};
inline constexpr int kResources = static_cast<int>(Resource::kHostLinks) + 1;

// What an instruction takes when it runs by itself.
struct TimeAlone {
  double seconds = 0;
  std::array<double, kResources> uses = {};  // The share of each resource that it takes meanwhile, from 0 to 1.
  bool waits_for_ranks = false;              // It ends when the last rank has come to it.
};

// The times of an instruction in the first iteration of its loop and in all others.
struct InstructionTimes {
  TimeAlone first, later;
};

struct ClockOptions {
  double issue_seconds = 0;  // Between the issue of an instruction, or of a graph, and that of the next one.
  bool graphs = false;       // Each iteration is one graph (engine/compile/program/graphs.h).
  double rank_spread = 0;    // MachineProfile::rank_spread.
};

struct IssueTimes {
  Issue issue;
  double begin = 0, end = 0;  // In seconds from the beginning of the step.
  // The issue whose end let this one begin, as an index into StepTimes::issues. -1: it began when it was issued.
  int32_t cause = -1;
  // How many iterations it stands for. More than 1 in one iteration of a loop that was not simulated to its end.
  double times = 1;
};

struct StepTimes {
  double seconds = 0;              // Of the step, from its first issue until all has finished.
  std::vector<IssueTimes> issues;  // Those that were simulated, in issue order.
  std::vector<int32_t> path;       // The critical path: indices into `issues`. Each one is the cause of the next.
  std::array<double, kStreams> busy_seconds = {};
  // What the path does not explain: waiting for issues.
  double issue_seconds = 0;
};

// Returns the times of one run of the program. `times` has one element for each instruction.
StepTimes RunOnPaper(const StepProgram& program, const std::vector<InstructionTimes>& times,
                     const ClockOptions& options = {});

}  // namespace shale
