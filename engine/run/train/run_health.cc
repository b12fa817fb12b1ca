#include "engine/run/train/run_health.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/program.h"
#include "engine/files/io/file.h"
#include "engine/files/io/json_lines.h"
#include "engine/run/runtime/rank_runtime.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr size_t kMostHostBytes = 256;

double UnixSecondsAt(int64_t steady_ns) {
  using std::chrono::nanoseconds;
  const int64_t steady = nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const int64_t now = nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  return static_cast<double>(now - steady + steady_ns) / 1e9;
}

JsonObject Line(int rank, const InstructionNote& note) {
  const Instruction& instruction = note.program->instructions[note.id];
  JsonObject line;
  line.Add("rank", rank).Add("stream", ToString(note.stream)).Add("run", note.run);
  line.Add("instruction", int64_t{note.id}).Add("name", NameOf(instruction));
  if (const auto* collective = std::get_if<Collective>(&instruction.action)) {
    line.Add("axis", ToString(collective->axis));
  }
  if (instruction.unit >= 0) line.Add("unit", note.program->units[instruction.unit]);
  line.Add("iteration", int64_t{note.iteration});
  if (note.begun_ns > 0) line.Add("begun", UnixSecondsAt(note.begun_ns));
  if (note.finished_ns > 0) line.Add("finished", UnixSecondsAt(note.finished_ns));
  return line;
}

// Returns whether all ranks of this process hold the state after the step that was done last.
bool HeldWhole(LocalRanks& ranks, const FailureMoment& moment) {
  if (moment.step == moment.done) return true;  // It failed between two steps.
  for (int local = 0; local < ranks.size(); ++local) {
    if (UpdateMayHaveBegun(ranks[local].ring().notes())) return false;
  }
  return true;
}

bool WritesState(const StepProgram& program, const Instruction& instruction) {
  bool writes = false;
  VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access access) {
    const Buffer& buffer = program.buffers[t.where.symbol];
    const bool state = buffer.category == BufferCategory::kParameterShards ||
                       buffer.category == BufferCategory::kMasterWeights ||
                       buffer.category == BufferCategory::kOptimizerState;
    writes |= access != Access::kRead && buffer.persistent && state;
  });
  return writes;
}

// Loop, iteration and id of an issue: smaller ones come first.
using IssueOrder = std::tuple<size_t, int64_t, InstructionId>;

// Returns where a run issues an instruction for the first time.
IssueOrder FirstIssue(const StepProgram& program, InstructionId id) {
  size_t loop = 0;
  while (program.loops[loop].end <= id) ++loop;
  return {loop, program.instructions[id].last_iteration_only ? program.loops[loop].repeat - 1 : 0, id};
}

// Returns the instruction that is the first to write weights or optimizer state, if there is one.
std::optional<InstructionId> FirstWrite(const StepProgram& program) {
  std::optional<InstructionId> first;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    if (!WritesState(program, program.instructions[id])) continue;
    if (!first || FirstIssue(program, id) < FirstIssue(program, *first)) first = id;
  }
  return first;
}

// Returns the last collective before instruction `id` that must have finished before that begins, if there is one.
std::optional<InstructionId> MeetingBefore(const StepProgram& program, InstructionId id) {
  std::array<InstructionId, kStreams> needed;  // The last instruction of each stream that must have finished.
  needed.fill(-1);
  const auto last_needed = [&](InstructionId of) -> InstructionId& {
    return needed[static_cast<int>(program.instructions[of].stream)];
  };
  last_needed(id) = id;
  for (InstructionId at = id; at >= 0; --at) {
    if (at > last_needed(at)) continue;
    if (at < id && std::holds_alternative<Collective>(program.instructions[at].action)) return at;
    for (const InstructionId wait : program.instructions[at].waits) {
      // What comes later in a loop is waited for in the iteration before.
      if (wait < at) last_needed(wait) = std::max(last_needed(wait), wait);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string FailureReportPath(absl::string_view folder, int process) {
  return JoinPath(folder, absl::StrCat("process-", process, ".jsonl"));
}

std::string FailureReport(LocalRanks& ranks, int process, const FailureMoment& moment, const absl::Status& error) {
  char host[kMostHostBytes] = {};
  gethostname(host, sizeof(host) - 1);
  const int64_t steady = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  JsonObject head;
  head.Add("process", process).Add("pid", int64_t{getpid()}).Add("host", host);
  head.Add("unix_seconds", UnixSecondsAt(steady)).Add("step", moment.step);
  if (HeldWhole(ranks, moment)) head.Add("held", moment.done);
  head.Add("saved", moment.saved);
  head.Add("ranks", ranks.mesh().ranks()).Add("shard_ranks", ranks.mesh().shard).Add("error", error.message());
  std::string text = absl::StrCat(head.ToString(), "\n");
  for (int local = 0; local < ranks.size(); ++local) {
    const std::vector<InstructionNote> notes = ranks[local].ring().notes();
    JsonObject line;
    line.Add("rank", ranks.number(local));
    if (notes.empty()) absl::StrAppend(&text, line.ToString(), "\n");
    for (const InstructionNote& note : notes) absl::StrAppend(&text, Line(ranks.number(local), note).ToString(), "\n");
  }
  return text;
}

bool UpdateMayHaveBegun(const std::vector<InstructionNote>& notes) {
  if (notes.empty()) return true;
  const auto earlier = [](const InstructionNote& a, const InstructionNote& b) { return a.run < b.run; };
  const InstructionNote& newest = *std::max_element(notes.begin(), notes.end(), earlier);
  const StepProgram& program = *newest.program;
  const std::optional<InstructionId> write = FirstWrite(program);
  if (!write) return false;
  const std::optional<InstructionId> meeting = MeetingBefore(program, *write);
  if (!meeting) return true;
  // The write waits for the collective of its own iteration, or of the last one of an earlier loop.
  const auto [write_loop, write_iteration, write_id] = FirstIssue(program, *write);
  auto [loop, iteration, id] = FirstIssue(program, *meeting);
  if (loop == write_loop && iteration > write_iteration) return true;
  iteration = loop < write_loop ? program.loops[loop].repeat - 1 : write_iteration;
  const IssueOrder met = {loop, iteration, id};
  for (const InstructionNote& note : notes) {
    if (note.run != newest.run || note.stream != program.instructions[id].stream) continue;
    const IssueOrder order = {std::get<0>(FirstIssue(program, note.id)), note.iteration, note.id};
    if (order > met || (order == met && note.finished_ns > 0)) return true;
  }
  return false;
}

void RunHealth::TellFailure(const absl::Status& status, const char* culprit) {
  if (!std::exchange(told_, true)) Tell(Failure{.status = status, .culprit = culprit, .step = steps_.done});
  // An error that all have found alike leaves no question who waited for whom. A report that cannot be written must not
  // hide why the run failed.
  if (damaged_ && !IsAgreed(status)) Report(status).IgnoreError();
}

absl::Status RunHealth::Report(const absl::Status& why) {
  if (folder_.empty() || reported_.exchange(true)) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(MakeFolders(folder_));
  const int64_t done = steps_.done, begun = steps_.begun;
  return WriteFileDurably(FailureReportPath(folder_, control_.process()),
                          FailureReport(*ranks_, control_.process(),
                                        {.step = std::max(begun, done), .done = done, .saved = steps_.saved}, why));
}

}  // namespace shale
