#include "engine/plan/time/prediction.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <map>
#include <unordered_map>
#include <utility>

#include "engine/compile/program/issues.h"

namespace shale {
namespace {

// The share of a GPU's multiprocessors that the kernel of a collective takes.
constexpr double kCollectiveProcessors = 0.1;

// A number that a profile may lack, or have wrong: 0 then.
double OrNothing(double value) { return PositiveOr(value, 0); }

// A work, and how long it takes by itself.
struct Known {
  WorkClass work_class = WorkClass::kMemory;
  WorkTime time;
  TimeAlone alone;
};

// The works of a program by kind and sizes, as WorkText has them: most instructions repeat those of a block.
struct KnownByText {
  std::unordered_map<std::string, const Known*> known;
  std::string key;  // Of the last work.
};

}  // namespace

// The works of steps with the same mesh, ranks on a host, processes and threads of a rank. Any thread may call Of.
class Predictor::Works {
 public:
  Works(const proto::MachineProfile& profile, const StepFacts& facts)
      : facts_(facts), profile_(profile), rates_(profile, facts.layout()) {}

  // Returns the work of an instruction. Works of one program with equal texts take the time of the first of them.
  const Known& Of(const Instruction& issued, KnownByText& of_program) {
    const Work work = WorkOf(issued, facts_.mesh);
    std::string& key = of_program.key;
    key = work.kind;
    const auto add = [&](double size) { key.append(reinterpret_cast<const char*>(&size), sizeof(size)); };
    for (const double size : work.sizes) add(size);
    const Known*& of_text = of_program.known[key];
    if (of_text != nullptr) return *of_text;
    for (const double size : {work.flops, work.bytes_read, work.bytes_written, work.sent_bytes}) add(size);
    of_text = &Of(work, key);
    return *of_text;
  }

 private:
  const Known& Of(const Work& work, const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, added] = known_.try_emplace(key);
    if (!added) return found->second;
    Known& known = found->second;
    known.work_class = work.work_class;
    known.time = rates_.Of(work);
    known.alone.seconds = known.time.seconds;
    known.alone.waits_for_ranks = work.work_class == WorkClass::kCollective;
    // What others take from a shared work is in its time already.
    if (!known.time.shared) known.alone.uses = UsesOf(work, known.time);
    return known;
  }

  std::array<double, kResources> UsesOf(const Work& work, const WorkTime& of_work) const {
    const double seconds = of_work.seconds;
    const bool on_cpu = profile_.device() == "CPU";
    std::array<double, kResources> uses = {};
    double& processors = uses[static_cast<size_t>(Resource::kProcessors)];
    double bytes = work.bytes();
    switch (work.work_class) {
      case WorkClass::kArithmetic:
      case WorkClass::kMemory: processors = 1; break;
      case WorkClass::kHost:
        if (!on_cpu) return uses;
        processors = 1;
        break;
      case WorkClass::kCopy: processors = on_cpu ? 1.0 / static_cast<double>(facts_.threads_per_rank) : 0; break;
      case WorkClass::kCollective:
        processors = on_cpu ? 1.0 / static_cast<double>(facts_.threads_per_rank) : kCollectiveProcessors;
        if (on_cpu && of_work.link_seconds > 0) {
          processors *= of_work.copy_seconds / seconds;
          uses[static_cast<size_t>(Resource::kHostLinks)] = of_work.link_seconds / seconds;
        }
        if (on_cpu) break;
        const CollectiveTime time = CollectiveTimeOf(work, profile_, facts_.ranks_on_host);
        uses[static_cast<size_t>(Resource::kDeviceLinks)] = std::min(1.0, time.device_seconds / seconds);
        uses[static_cast<size_t>(Resource::kHostLinks)] = std::min(1.0, time.host_seconds / seconds);
    }
    // On CPUs the ranks of a host share its memory.
    if (on_cpu) bytes *= static_cast<double>(facts_.ranks_on_host);
    const double bandwidth = OrNothing(profile_.copy_bytes_per_second());
    if (bandwidth > 0) {
      uses[static_cast<size_t>(Resource::kMemory)] = std::min(1.0, bytes / seconds / bandwidth);
    }
    return uses;
  }

  const StepFacts facts_;
  const proto::MachineProfile& profile_;
  const Rates rates_;
  std::mutex mutex_;                              // Guards known_, but not what it holds: that stays as it is.
  std::unordered_map<std::string, Known> known_;  // By all that their seconds depend on.
};

// By instruction.
class ProgramWorks {
 public:
  template <class Works>
  ProgramWorks(const StepProgram& program, Works& works) {
    known_.reserve(program.instructions.size());
    KnownByText by_text;
    for (const Instruction& instruction : program.instructions) {
      const Known *later = &works.Of(instruction, by_text), *first = later;
      if (instruction.first_iteration_differs) {
        Instruction form = instruction;
        TakeForm(form, /*first_iteration=*/true);
        first = &works.Of(form, by_text);
      }
      known_.emplace_back(first, later);
    }
  }

  std::vector<InstructionTimes> Times() const {
    std::vector<InstructionTimes> times;
    times.reserve(known_.size());
    for (const auto& [first, later] : known_) times.push_back({first->alone, later->alone});
    return times;
  }
  const Known& First(InstructionId id) const { return *known_[id].first; }
  const Known& Later(InstructionId id) const { return *known_[id].second; }
  const Known& Of(const Issue& issue) const { return issue.first_iteration() ? First(issue.id) : Later(issue.id); }

 private:
  std::vector<std::pair<const Known*, const Known*>> known_;  // Of the first iteration and of the others.
};

namespace {

// Returns "blocks.*.attention" for "blocks.12.attention".
std::string WithoutNumbers(absl::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) text += c;
    if (digit && (text.empty() || text.back() != '*')) text += '*';
  }
  return text;
}

// Returns the share of each kind of knowledge in the seconds that all streams are busy.
std::array<double, kKnowledges> SharesOf(const ProgramWorks& known, const StepTimes& step) {
  std::array<double, kKnowledges> shares = {};
  double all = 0;
  for (const IssueTimes& times : step.issues) {
    const double seconds = times.times * (times.end - times.begin);
    shares[static_cast<size_t>(known.Of(times.issue).time.how)] += seconds;
    all += seconds;
  }
  if (all > 0) {
    for (double& share : shares) share /= all;
  }
  return shares;
}

// Goes along the critical path. Returns how many seconds the step may be off.
double AddPath(const StepProgram& program, const ProgramWorks& known, Prediction& p) {
  double off = 0, explained = 0;
  std::map<std::pair<std::string, std::string>, double> parts;
  for (const int32_t i : p.times.path) {
    const IssueTimes& times = p.times.issues[i];
    const Instruction& instruction = program.instructions[times.issue.id];
    const Known& of = known.Of(times.issue);
    const double seconds = times.times * (times.end - times.begin);
    p.limits[static_cast<size_t>(of.work_class)] += seconds;
    parts[{instruction.unit < 0 ? "" : WithoutNumbers(program.units[instruction.unit]), NameOf(instruction)}] +=
        seconds;
    off += seconds * of.time.spread;
    explained += seconds;
  }
  // The path of an iteration that stands for others may be a little longer than the time between two of them.
  p.limits[static_cast<size_t>(Limit::kIssue)] = p.times.seconds - explained;
  for (const auto& [name, seconds] : parts) p.path.push_back({name.first, name.second, seconds});
  std::stable_sort(p.path.begin(), p.path.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return off;
}

}  // namespace

absl::string_view ToString(Limit limit) {
  switch (limit) {
    case Limit::kArithmetic: return "matmuls and attention";
    case Limit::kMemory: return "ops bound by memory";
    case Limit::kHost: return "ops on the host";
    case Limit::kCollective: return "exposed communication";
    case Limit::kCopy: return "exposed copies";
    case Limit::kIssue: return "waiting for issue";
    case Limit::kBetweenSteps: return "between steps";
  }
  return "?";
}

double Float8Speed(double peak_flops, double peak_flops_fp8) {
  return peak_flops > 0 && peak_flops_fp8 > 0 ? peak_flops_fp8 / peak_flops : 1;
}

double FlopsAtPeak(double flops, double float8_flops, double float8_speed) {
  return flops - float8_flops * (1 - 1 / float8_speed);
}

double MfuOf(double flops, double seconds, double peak_flops, int64_t ranks) {
  if (peak_flops <= 0 || seconds <= 0) return 0;
  const double mfu = flops / seconds / (peak_flops * static_cast<double>(ranks));
  return mfu > 1 ? 0 : mfu;
}

Predictor::Predictor(const proto::MachineProfile& profile) : profile_(profile) {}
Predictor::~Predictor() = default;

Predictor::Works& Predictor::WorksOf(const StepFacts& facts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Works>& works =
      works_[{facts.mesh.replicate, facts.mesh.shard, facts.ranks_on_host, facts.processes, facts.threads_per_rank}];
  if (works == nullptr) works = std::make_unique<Works>(profile_, facts);
  return *works;
}

std::shared_ptr<const ProgramWorks> Predictor::WorksOf(const StepProgram& program, const StepFacts& facts) {
  return std::make_shared<const ProgramWorks>(program, WorksOf(facts));
}

StepTimes Predictor::Run(const StepProgram& program, const ProgramWorks& works, const StepFacts& facts) const {
  return RunOnPaper(program, works.Times(),
                    {.issue_seconds = OrNothing(profile_.issue_seconds()),
                     .graphs = facts.graphs,
                     .rank_spread = std::min(1.0, OrNothing(profile_.rank_spread()))});
}

StepSeconds Predictor::SecondsOf(const StepProgram& program, const ProgramWorks& works, const StepFacts& facts) const {
  const StepTimes times = Run(program, works, facts);
  return {.seconds = times.seconds + OrNothing(profile_.between_steps_seconds()), .known = SharesOf(works, times)};
}

double Predictor::LeastSecondsOf(const StepProgram& program, const ProgramWorks& works) const {
  constexpr double kRounding = 1e-5;  // More than the clock may round off, also where it takes iterations for equal.
  std::array<double, kStreams> busy = {};
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const Instruction& instruction = program.instructions[id];
      const bool has_first = IsIssued(instruction, loop, 0);
      const auto later = static_cast<double>(TimesIssued(instruction, loop) - (has_first ? 1 : 0));
      busy[static_cast<size_t>(instruction.stream)] +=
          (has_first ? works.First(id).alone.seconds : 0) + later * works.Later(id).alone.seconds;
    }
  }
  const double least = *std::max_element(busy.begin(), busy.end()) * (1 - kRounding);
  return least + OrNothing(profile_.between_steps_seconds());
}

Prediction Predictor::Predict(const StepProgram& program, const StepFacts& facts) {
  // The first limits are the classes of works.
  static_assert(static_cast<int>(Limit::kCopy) == static_cast<int>(WorkClass::kHost) + 2 && kWorkClasses == 5);
  Prediction p{.machine = profile_.name()};
  const ProgramWorks known(program, WorksOf(facts));
  p.times = Run(program, known, facts);
  p.known = SharesOf(known, p.times);
  const double off = AddPath(program, known, p);
  const double between = OrNothing(profile_.between_steps_seconds());
  p.limits[static_cast<size_t>(Limit::kBetweenSteps)] = between;
  p.busy_seconds = p.times.busy_seconds;
  p.step_seconds = p.times.seconds + between;
  p.low_seconds = std::max(p.step_seconds - off, p.step_seconds / 2);
  p.high_seconds = p.step_seconds + off;
  p.tokens_per_second = p.step_seconds > 0 ? facts.tokens / p.step_seconds : 0;
  const double peak = OrNothing(facts.narrow ? profile_.peak_flops_bf16() : profile_.peak_flops_f32());
  const double speed = Float8Speed(peak, OrNothing(profile_.peak_flops_fp8()));
  const double per_token = FlopsAtPeak(facts.flops_per_token, facts.float8_flops_per_token, speed);
  p.mfu = MfuOf(facts.tokens * per_token, p.step_seconds, peak, facts.mesh.ranks());
  return p;
}

Prediction Predict(const StepProgram& program, const StepFacts& facts, const proto::MachineProfile& profile) {
  return Predictor(profile).Predict(program, facts);
}

}  // namespace shale
