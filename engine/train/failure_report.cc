#include "engine/train/failure_report.h"

#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/io/file.h"
#include "engine/io/json_lines.h"
#include "engine/program/program.h"
#include "engine/runtime/instruction_ring.h"
#include "engine/train/update_progress.h"

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

}  // namespace shale
