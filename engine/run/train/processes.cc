#include "engine/run/train/processes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr ControlChannel kStepChannel = ControlChannel::kSteps;

// Returns numbers that are separated by blanks.
absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) {
      return absl::InternalError(absl::StrCat("wanted numbers from a process, found \"", part, "\""));
    }
  }
  return numbers;
}

}  // namespace

absl::StatusOr<Machine> MachineOfAll(Machine mine, int64_t ranks, int64_t ranks_on_host, ControlPlane& control) {
  if (control.processes() == 1 || mine.default_budget == nullptr) return mine;
  const absl::StatusOr<Budget> here = mine.default_budget(ranks_on_host > 0 ? ranks_on_host : ranks);
  Budget least = here.value_or(Budget());
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         control.Gather(kStepChannel, absl::StrCat(least.bytes, " ", least.host_bytes)));
  const absl::Status status = AgreeOnStatus(control, kStepChannel, here.status());
  SHALE_ASSIGN_OR_RETURN(least.origin, control.Broadcast(kStepChannel, least.origin));
  SHALE_ASSIGN_OR_RETURN(least.host_origin, control.Broadcast(kStepChannel, least.host_origin));
  if (!status.ok()) {
    mine.default_budget = [status](int64_t) -> absl::StatusOr<Budget> { return status; };
    return mine;
  }
  for (const std::string& theirs : all) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, ParseNumbers(theirs));
    if (bytes.size() != 2) return absl::InternalError("a process sent no budget");
    least.bytes = std::min(least.bytes, bytes[0]);
    least.host_bytes = std::min(least.host_bytes, bytes[1]);
  }
  // Planning asks for other numbers of ranks only to advise them.
  mine.default_budget = [least, ranks](int64_t wanted) -> absl::StatusOr<Budget> {
    Budget budget = least;
    const auto share = [&](int64_t bytes) {
      return bytes == kNoBudget ? bytes : bytes / std::max<int64_t>(1, wanted) * ranks;
    };
    if (wanted != ranks) {
      budget.bytes = share(least.bytes);
      budget.host_bytes = share(least.host_bytes);
    }
    return budget;
  };
  return mine;
}

absl::StatusOr<std::vector<int>> ProcessOfEachRank(const std::vector<int>& mine, int64_t ranks, ControlPlane& control) {
  if (control.processes() == 1) return std::vector<int>(ranks, 0);
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all, control.Gather(kStepChannel, absl::StrJoin(mine, " ")));
  std::vector<int> process_of_rank(ranks, -1);
  for (int process = 0; process < std::ssize(all); ++process) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> theirs, ParseNumbers(all[process]));
    if (theirs.empty()) {
      return Agreed(
          absl::InvalidArgumentError(absl::StrCat("process ", process, " of ", all.size(), " holds no rank of ", ranks,
                                                  "; start at most as many processes as ranks")));
    }
    for (const int64_t rank : theirs) {
      if (rank < 0 || rank >= ranks || process_of_rank[rank] >= 0) {
        return Agreed(absl::InvalidArgumentError(absl::StrCat(
            "process ", process, " holds rank ", rank, " of ", ranks,
            rank < 0 || rank >= ranks ? "" : absl::StrCat(", and so does process ", process_of_rank[rank]))));
      }
      process_of_rank[rank] = process;
    }
  }
  const auto none = std::find(process_of_rank.begin(), process_of_rank.end(), -1);
  if (none == process_of_rank.end()) return process_of_rank;
  return Agreed(absl::InvalidArgumentError(
      absl::StrCat("no process holds rank ", none - process_of_rank.begin(), " of ", ranks)));
}

std::string Serialize(const StepNote& note) {
  std::string message =
      absl::StrFormat("%d %d %d %.17g", note.stop ? 1 : 0, note.wants_trace ? 1 : 0, note.peak_bytes, note.flops);
  for (const auto& [rank, waited] : note.waited_ns) absl::StrAppend(&message, " ", rank, " ", waited);
  if (note.longest.rank < 0) return message;
  absl::StrAppendFormat(&message, "\n%d %.17g", note.longest.rank, note.longest.own_seconds);
  for (const auto& [kind, seconds] : note.longest.seconds) absl::StrAppendFormat(&message, "\n%.17g %s", seconds, kind);
  return message;
}

absl::StatusOr<StepNote> ParseStepNote(absl::string_view message) {
  const std::vector<absl::string_view> lines = absl::StrSplit(message, '\n');
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  StepNote note;
  int64_t stop = 0, wants_trace = 0;
  bool good = words.size() >= 4 && words.size() % 2 == 0 && absl::SimpleAtoi(words[0], &stop) &&
              absl::SimpleAtoi(words[1], &wants_trace) && absl::SimpleAtoi(words[2], &note.peak_bytes) &&
              absl::SimpleAtod(words[3], &note.flops);
  for (size_t i = 4; good && i < words.size(); i += 2) {
    auto& [rank, waited] = note.waited_ns.emplace_back();
    good = absl::SimpleAtoi(words[i], &rank) && absl::SimpleAtoi(words[i + 1], &waited);
  }
  // The lines after the first have two parts, and the latter of them may have blanks.
  for (size_t i = 1; good && i < lines.size(); ++i) {
    const std::vector<absl::string_view> parts = absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    good = parts.size() == 2;
    if (good && i == 1) {
      good = absl::SimpleAtoi(parts[0], &note.longest.rank) && absl::SimpleAtod(parts[1], &note.longest.own_seconds);
    } else if (good) {
      good = absl::SimpleAtod(parts[0], &note.longest.seconds[std::string(parts[1])]);
    }
  }
  if (!good) return absl::InternalError("a process sent no note after the step");
  note.stop = stop != 0;
  note.wants_trace = wants_trace != 0;
  return note;
}

}  // namespace shale
