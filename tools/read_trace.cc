#include "tools/read_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "engine/run/runtime/trace.h"
#include "engine/strings/messages.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

// Collects what ReadTrace returns from the events of a trace, which come in issue order.
class TraceReader {
 public:
  TraceReader(const StepProgram& program, int64_t ranks) : program_(program), ranks_(ranks) {}

  void Take(const nlohmann::json& event) {
    const auto args = event.find("args");
    if (args == event.end() || !args->is_object() || Number(event, "pid") != 0) return;
    if (Text(event, "name") == "process_name") digest_ = Text(*args, "program");
    if (Text(event, "ph") != "X") return;
    const double step = Number(*args, "step"), id = Number(*args, "instruction");
    const double begin = Number(event, "ts") * 1e-6, seconds = Number(event, "dur") * 1e-6;
    constexpr double kMost = 1e15;  // Doubles have the integers up to it, and seconds their microseconds.
    malformed_ |= !(step >= 0 && step < kMost && id >= 0 && id < kMost && std::abs(begin) < kMost && seconds >= 0 &&
                    seconds < kMost);
    if (malformed_ || step < static_cast<double>(last_.step)) return;
    if (step > static_cast<double>(last_.step)) last_ = {.step = static_cast<int64_t>(step)};
    IssueTimes& times = last_.times.issues.emplace_back();
    // Which iteration of its loop this is follows from the issues before it, once the program is known to be the same.
    times.issue.id = static_cast<InstructionId>(std::min<double>(id, std::numeric_limits<InstructionId>::max()));
    times.begin = begin;
    times.end = begin + seconds;
  }

  absl::StatusOr<MeasuredStep> Finish() {
    std::vector<IssueTimes>& issues = last_.times.issues;
    if (malformed_ || issues.empty()) {
      return absl::InvalidArgumentError("no instructions of rank 0; wanted a file that train --trace wrote");
    }
    if (const std::string digest = ProgramDigest(program_, ranks_); digest != digest_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a trace of another program: its digest is ", digest_.empty() ? "missing" : Quoted(digest_),
          ", and that of the job's step is ", Quoted(digest),
          "; plan the job that was traced, the job.textproto of its run, with the version that trained it"));
    }
    if (std::ssize(issues) != CountIssues(program_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a step of ", issues.size(), " instructions; that of the job has ", CountIssues(program_)));
    }
    double first = issues[0].begin;
    for (const IssueTimes& times : issues) first = std::min(first, times.begin);
    auto read = issues.begin();
    for (const Issue& issue : IssuesOf(program_)) {
      IssueTimes& times = *read++;
      if (times.issue.id != issue.id) {
        return absl::InvalidArgumentError(
            absl::StrCat("instruction ", times.issue.id, " where the job has ", issue.id));
      }
      times.issue = issue;
      times.begin -= first;
      times.end -= first;
      last_.times.seconds = std::max(last_.times.seconds, times.end);
      last_.times.busy_seconds[static_cast<size_t>(program_.instructions[issue.id].stream)] += times.end - times.begin;
    }
    return std::move(last_);
  }

 private:
  static std::string Text(const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
  }
  // Returns NaN if there is no such number.
  static double Number(const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() || !found->is_number() ? std::nan("") : found->get<double>();
  }

  const StepProgram& program_;
  const int64_t ranks_;
  std::string digest_;
  MeasuredStep last_;
  bool malformed_ = false;  // An event lacks what each one has.
};

}  // namespace

absl::StatusOr<MeasuredStep> ReadTrace(absl::string_view json, const StepProgram& program, int64_t ranks) {
  constexpr int kDepth = 2;  // Of an event: the file is an object with a list of them.
  TraceReader reader(program, ranks);
  // Events are read one by one and not kept: their JSON takes many times the memory of the file.
  const auto take = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (depth != kDepth || event != nlohmann::json::parse_event_t::object_end) return true;
    reader.Take(parsed);
    return false;
  };
  const auto rest = nlohmann::json::parse(json.begin(), json.end(), take, /*allow_exceptions=*/false);
  if (rest.is_discarded()) return absl::InvalidArgumentError("no JSON; wanted a file that train --trace wrote");
  return reader.Finish();
}

}  // namespace shale
