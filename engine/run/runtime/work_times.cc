#include "engine/run/runtime/work_times.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <variant>

#include "engine/compile/program/issues.h"
#include "kernels/check.h"

namespace shale {
namespace {

double Between(int64_t begin_ns, int64_t end_ns) { return static_cast<double>(end_ns - begin_ns) * 1e-9; }

bool Meets(const Instruction& instruction) { return std::holds_alternative<Collective>(instruction.action); }

double MiddleOrNone(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return (values[last / 2] + values[(last + 1) / 2]) / 2;
}

// Adds to `gaps` what passes between neighbors on the compute stream of a rank.
void AddGaps(const StepProgram& program, absl::Span<const InstructionTime> times, std::vector<double>& gaps) {
  const InstructionTime* former = nullptr;
  for (const InstructionTime& time : times) {
    const Instruction& instruction = program.instructions[time.id];
    if (instruction.stream != StreamId::kCompute) continue;
    if (former != nullptr && instruction.waits.empty()) gaps.push_back(Between(former->end_ns, time.begin_ns));
    former = &time;
  }
}

}  // namespace

MeanAndSpread MeanOf(std::vector<double> values) {
  SHALE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .spread = (values[last - last / 4] - values[last / 4]) / 2};
}

std::vector<absl::Span<const InstructionTime>> TimesOfRanks(const LocalRanks& ranks, const LocalProgram& program) {
  std::vector<absl::Span<const InstructionTime>> times;
  for (int local = 0; local < ranks.size(); ++local) times.push_back(program.times(local));
  return times;
}

WorkTimes::Samples& WorkTimes::SamplesOf(const StepProgram& program, const Mesh& mesh, const InstructionTime& time) {
  Instruction issued = program.instructions[time.id];
  TakeForm(issued, time.iteration == 0);
  Work work = WorkOf(issued, mesh);
  Samples& samples = works_[WorkText(work)];
  if (samples.seconds.empty()) samples.stream = issued.stream;
  samples.work = std::move(work);
  return samples;
}

void WorkTimes::Add(const StepProgram& program, const Mesh& mesh,
                    absl::Span<const absl::Span<const InstructionTime>> ranks, double seconds) {
  if (ranks.empty() || ranks[0].empty()) return;
  // Works of instructions in their two forms, so that those of a long loop are not described again and again.
  std::vector<Samples*> first(program.instructions.size()), later(program.instructions.size());
  const int64_t step_begin_ns = ranks[0][0].begin_ns;
  int64_t begin_ns = step_begin_ns, end_ns = begin_ns;
  std::array<int64_t, kStreams> met_ns;  // When the last collective of each stream ended.
  met_ns.fill(begin_ns);
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    const InstructionTime& time = ranks[0][i];
    Samples*& samples = (time.iteration == 0 ? first : later)[time.id];
    if (samples == nullptr) samples = &SamplesOf(program, mesh, time);
    ++samples->issues;
    int64_t first_begin = time.begin_ns, last_begin = time.begin_ns, last_end = time.end_ns;
    double begins = 0;  // The sum of all, from the time at which the step began.
    const bool meets = Meets(program.instructions[time.id]);
    for (const absl::Span<const InstructionTime> rank : ranks) {
      first_begin = std::min(first_begin, rank[i].begin_ns);
      last_begin = std::max(last_begin, rank[i].begin_ns);
      last_end = std::max(last_end, rank[i].end_ns);
      begins += Between(step_begin_ns, rank[i].begin_ns);
      if (!meets) samples->seconds.push_back(rank[i].seconds());
    }
    if (meets) {
      samples->seconds.push_back(Between(last_begin, last_end));
      int64_t& met = met_ns[static_cast<size_t>(samples->stream)];
      const double since = std::max(0.0, Between(met, last_begin));
      const double wait = Between(step_begin_ns, last_begin) - begins / static_cast<double>(ranks.size());
      waited_seconds_ += std::min(wait, since);
      between_collectives_seconds_ += since;
      met = last_end;
    }
    begin_ns = std::min(begin_ns, first_begin);
    end_ns = std::max(end_ns, last_end);
  }
  for (const absl::Span<const InstructionTime> rank : ranks) AddGaps(program, rank, gaps_);
  beside_.push_back(std::max(0.0, seconds - Between(begin_ns, end_ns)));
  ++steps_;
}

double WorkTimes::issue_seconds() const { return MiddleOrNone(gaps_); }
double WorkTimes::between_steps_seconds() const { return MiddleOrNone(beside_); }
double WorkTimes::rank_spread() const {
  return between_collectives_seconds_ > 0 ? waited_seconds_ / between_collectives_seconds_ : 0;
}

}  // namespace shale
