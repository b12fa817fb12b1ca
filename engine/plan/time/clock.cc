#include "engine/plan/time/clock.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/check.h"

namespace shale {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Iterations of a loop that are simulated. The first and the last may differ from the others, of which two periods must
// be equal. Where they are not, more are simulated, up to a limit.
constexpr int64_t kLeastIterations = 5, kMostIterations = 40;
// Periods are equal if they differ by less than this share.
constexpr double kSamePeriod = 1e-6;

// Runs the issues of a program in which no loop has more than `most_iterations` iterations.
class PaperRun {
 public:
  PaperRun(const StepProgram& program, const std::vector<InstructionTimes>& times, const ClockOptions& options,
           int64_t most_iterations)
      : program_(program), options_(options) {
    Enqueue(times, most_iterations);
  }

  std::vector<IssueTimes> Run() {
    while (finished_ < std::ssize(issues_)) {
      for (Lane& lane : lanes_) TryToBegin(lane);
      ShareResources();
      GoOn();
    }
    return std::move(issues_);
  }

 private:
  // An issue before it runs.
  struct Planned {
    const TimeAlone* alone = nullptr;
    double issued_at = 0;
    int64_t launch = 0;  // As graphs: the number of its graph. Otherwise 0.
    size_t first_wait = 0, end_wait = 0;
  };
  // A stream.
  struct Lane {
    std::vector<int32_t> queue;  // Its issues.
    size_t next = 0;             // The first that has not finished.
    int32_t previous = -1;       // The last that has.
    bool runs = false;           // The next one runs now:
    double remaining = 0;        // what is left of it, in seconds by itself,
    double speed = 1;            // and how fast it runs.
    double met_at = 0;           // When ranks last met in a collective of it.
    int32_t at() const { return next < queue.size() ? queue[next] : -1; }
  };

  void Enqueue(const std::vector<InstructionTimes>& times, int64_t most_iterations) {
    std::vector<int32_t> latest(program_.instructions.size(), -1);
    size_t count = 0;
    for (const Loop& loop : program_.loops) {
      count += static_cast<size_t>(std::min(loop.repeat, most_iterations) * (loop.end - loop.begin));
    }
    issues_.reserve(count);
    planned_.reserve(count);
    int64_t launch = -1;
    size_t loop = 0;
    int64_t iteration = -1;
    for (const Issue& issue : IssuesOf(program_, most_iterations)) {
      if (launch < 0 || issue.loop != loop || issue.iteration != iteration) ++launch, unfinished_.push_back(0);
      loop = issue.loop, iteration = issue.iteration;
      const Instruction& instruction = program_.instructions[issue.id];
      const auto number = static_cast<int32_t>(issues_.size());
      Planned planned{.alone = issue.first_iteration() ? &times[issue.id].first : &times[issue.id].later,
                      .issued_at = options_.issue_seconds * static_cast<double>(options_.graphs ? launch : number),
                      .launch = launch,
                      .first_wait = waits_.size()};
      for (const InstructionId wait : instruction.waits) {
        if (latest[wait] >= 0) waits_.push_back(latest[wait]);
      }
      planned.end_wait = waits_.size();
      latest[issue.id] = number;
      ++unfinished_[launch];
      lanes_[static_cast<size_t>(instruction.stream)].queue.push_back(number);
      planned_.push_back(planned);
      issues_.push_back({.issue = issue, .end = kNever});
    }
  }

  // Returns when an issue may begin, and sets its cause. Returns kNever if something that it waits for has not ended.
  double ReadyAt(const Lane& lane, int32_t number) {
    const Planned& planned = planned_[number];
    if (options_.graphs && planned.launch > open_launch_) return kNever;
    double ready = planned.issued_at;
    int32_t cause = -1;
    const auto after = [&](int32_t other) {
      if (other < 0 || issues_[other].end < ready) return;
      ready = issues_[other].end;
      cause = other;
    };
    after(lane.previous);
    if (options_.graphs) after(opened_by_);
    for (size_t w = planned.first_wait; w < planned.end_wait; ++w) after(waits_[w]);
    issues_[number].cause = cause;
    return ready;
  }

  void TryToBegin(Lane& lane) {
    const int32_t number = lane.at();
    if (lane.runs || number < 0) return;
    const double ready = ReadyAt(lane, number);
    if (ready > now_) {
      next_ready_ = std::min(next_ready_, ready);
      return;
    }
    issues_[number].begin = now_;
    lane.runs = true;
    lane.remaining = planned_[number].alone->seconds;
    if (planned_[number].alone->waits_for_ranks) lane.remaining += options_.rank_spread * (now_ - lane.met_at);
  }

  // Sets the speeds of all that runs.
  void ShareResources() {
    std::array<double, kResources> used = {};
    for (const Lane& lane : lanes_) {
      for (int r = 0; lane.runs && r < kResources; ++r) used[r] += planned_[lane.at()].alone->uses[r];
    }
    for (Lane& lane : lanes_) {
      double slowest = 1;
      for (int r = 0; lane.runs && r < kResources; ++r) {
        if (planned_[lane.at()].alone->uses[r] > 0) slowest = std::max(slowest, used[r]);
      }
      lane.speed = 1 / slowest;
    }
  }

  // Goes on to the next moment at which something ends or may begin.
  void GoOn() {
    double next = next_ready_;
    for (const Lane& lane : lanes_) {
      if (lane.runs) next = std::min(next, now_ + lane.remaining / lane.speed);
    }
    SHALE_CHECK(next < kNever) << "a step program whose instructions wait for each other";
    for (Lane& lane : lanes_) {
      if (!lane.runs) continue;
      if (now_ + lane.remaining / lane.speed <= next) {
        End(lane, next);
      } else {
        lane.remaining -= (next - now_) * lane.speed;
      }
    }
    now_ = next;
    next_ready_ = kNever;
  }

  void End(Lane& lane, double now) {
    const int32_t number = lane.at();
    issues_[number].end = now;
    if (planned_[number].alone->waits_for_ranks) lane.met_at = now;
    lane.previous = number;
    lane.runs = false;
    ++lane.next;
    ++finished_;
    --unfinished_[planned_[number].launch];
    while (open_launch_ + 1 < std::ssize(unfinished_) && unfinished_[open_launch_] == 0) {
      ++open_launch_;
      opened_by_ = number;
    }
  }

  const StepProgram& program_;
  const ClockOptions& options_;
  std::vector<IssueTimes> issues_;
  std::vector<Planned> planned_;  // Of each issue.
  std::vector<int32_t> waits_;
  std::array<Lane, kStreams> lanes_;
  std::vector<int64_t> unfinished_;  // Issues of each launch that have not ended.
  int64_t open_launch_ = 0;          // The first launch that has not ended, and what ended last before it.
  int32_t opened_by_ = -1;
  int64_t finished_ = 0;
  double now_ = 0;
  double next_ready_ = kNever;  // When the next issue may begin whose waits have all ended.
};

// The ends of an instruction in the last iteration but one that was simulated, and in the two before it.
using LastEnds = std::array<double, 3>;

std::vector<LastEnds> LastEndsOf(const StepProgram& program, const std::vector<IssueTimes>& issues,
                                 int64_t iterations) {
  std::vector<LastEnds> ends(program.instructions.size(), {kNever, kNever, kNever});
  for (const IssueTimes& times : issues) {
    const int64_t back = iterations - 2 - times.issue.iteration;
    if (back >= 0 && back < std::ssize(LastEnds())) ends[times.issue.id][back] = times.end;
  }
  return ends;
}

// Returns the time from one iteration of the loop to the next. Sets `repeats` to false if it still changes.
double PeriodOf(const Loop& loop, const std::vector<LastEnds>& ends, bool* repeats) {
  double latest = 0, period = 0;
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    if (ends[id][0] == kNever || ends[id][0] < latest) continue;
    latest = ends[id][0];
    period = ends[id][0] - ends[id][1];
  }
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    if (ends[id][0] == kNever) continue;  // It is issued in the last iteration only.
    for (const double between : {ends[id][0] - ends[id][1], ends[id][1] - ends[id][2]}) {
      *repeats &= std::abs(between - period) <= kSamePeriod * period;
    }
  }
  return period;
}

// Lets one iteration of each loop stand for those that were not simulated. Returns the seconds of these.
double Extrapolate(const StepProgram& program, int64_t iterations, std::vector<IssueTimes>& issues, bool* repeats) {
  const std::vector<LastEnds> ends = LastEndsOf(program, issues, iterations);
  double seconds = 0;
  for (const Loop& loop : program.loops) {
    if (loop.repeat <= iterations) continue;
    seconds += PeriodOf(loop, ends, repeats) * static_cast<double>(loop.repeat - iterations);
  }
  for (IssueTimes& times : issues) {
    const int64_t repeat = program.loops[times.issue.loop].repeat;
    if (repeat > iterations && times.issue.iteration == iterations - 2) {
      times.times = static_cast<double>(1 + repeat - iterations);
    }
  }
  return seconds;
}

// Adds what follows from the times of the issues.
void Summarize(const StepProgram& program, StepTimes& step) {
  double latest = 0, explained = 0;
  int32_t at = -1;
  for (int32_t i = 0; i < std::ssize(step.issues); ++i) {
    const IssueTimes& times = step.issues[i];
    step.busy_seconds[static_cast<size_t>(program.instructions[times.issue.id].stream)] +=
        times.times * (times.end - times.begin);
    if (times.end >= latest) latest = times.end, at = i;
  }
  for (; at >= 0; at = step.issues[at].cause) {
    step.path.push_back(at);
    explained += step.issues[at].times * (step.issues[at].end - step.issues[at].begin);
  }
  std::reverse(step.path.begin(), step.path.end());
  step.seconds += latest;
  step.issue_seconds = std::max(0.0, step.seconds - explained);
}

}  // namespace

StepTimes RunOnPaper(const StepProgram& program, const std::vector<InstructionTimes>& times,
                     const ClockOptions& options) {
  SHALE_CHECK(times.size() == program.instructions.size());
  StepTimes step;
  for (int64_t iterations = kLeastIterations;; iterations *= 2) {
    step.issues = PaperRun(program, times, options, iterations).Run();
    bool repeats = true;
    step.seconds = Extrapolate(program, iterations, step.issues, &repeats);
    if (repeats || iterations >= kMostIterations) break;
  }
  Summarize(program, step);
  return step;
}

}  // namespace shale
