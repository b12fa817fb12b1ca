#include "engine/planner/fit.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/planner/patterns.h"
#include "engine/planner/trial.h"
#include "engine/planner/ways_out.h"
#include "engine/text/numbers.h"
#include "engine/text/quote.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr FitField kFields[] = {FitField::kMicroBatch, FitField::kSequenceLength, FitField::kRanks};

// How many further values are tried beyond the first one that does not fit.
constexpr int64_t kBeyond = 3;
// The most steps of accumulation for which larger micro-batches are tried: each takes the time of a plan.
constexpr int64_t kMostSteps = 64;

class Search {
 public:
  Search(FitField field, const Job& job, absl::FunctionRef<absl::StatusOr<Job>(int64_t value)> job_with,
         const Machine& machine, FitEffort effort, const WorkLimits& limits)
      : field_(field), job_(job), job_with_(job_with), machine_(machine), effort_(effort), limits_(limits) {
    switch (field) {
      case FitField::kMicroBatch:
        start_ = job.batch.micro_batch;
        best_ = CeilDivide(job.batch.global_batch, job.sharding.ranks);
        break;
      case FitField::kSequenceLength:
        start_ = job.batch.sequence_length;
        best_ = int64_t{1} << 40;  // Never reached: job_with_ refuses smaller values already.
        break;
      case FitField::kRanks:
        // One rank may need less memory than several, because it gathers nothing. Very many ranks need more again,
        // because of padding.
        start_ = best_ = 1;
        worst_ = std::max(job.sharding.ranks, job.batch.global_batch);
        break;
    }
    start_ = std::clamp(start_, std::min(best_, worst_), std::max(best_, worst_));
  }

  // What was found after a limit was reached is not the best value, so nothing is returned then.
  absl::StatusOr<Fit> Run() {
    absl::StatusOr<Fit> fit = Find();
    SHALE_RETURN_IF_ERROR(limits_.Check());
    return fit;
  }

 private:
  absl::StatusOr<Fit> Find() {
    const absl::Status& own = Try(field_ == FitField::kRanks ? job_.sharding.ranks : start_).status;
    if (absl::IsInvalidArgument(own)) return own;
    SHALE_ASSIGN_OR_RETURN(int64_t value, FindAnywhere());
    if (field_ == FitField::kMicroBatch && effort_ == FitEffort::kThorough) value = LargerWithOtherSteps(value);
    Fit fit{.best = Try(value)};
    if (value != best_) fit.next = Try(field_ == FitField::kRanks ? value - 1 : value + 1);
    SHALE_ASSIGN_OR_RETURN(const Job job, job_with_(value));
    SHALE_ASSIGN_OR_RETURN(fit.budget, BudgetOf(job, machine_.default_budget));
    return fit;
  }

  // Returns `value` doubled or halved towards `limit`, but not beyond `limit`.
  static int64_t Leap(int64_t value, int64_t limit) {
    return limit > value ? std::min(2 * value, limit) : std::max(value / 2, limit);
  }

  bool Fits(int64_t value) { return Try(value).fits; }

  const FitTrial& Try(int64_t value) {
    const auto [it, added] = trials_.try_emplace(value);
    FitTrial& trial = it->second;
    if (!added) return trial;
    trial.value = value;
    trial.status = Compile(trial);
    return trial;
  }

  absl::Status Compile(FitTrial& trial) {
    SHALE_ASSIGN_OR_RETURN(const Job job, job_with_(trial.value));
    SHALE_ASSIGN_OR_RETURN(const JobGraphs graphs, BuildGraphs(job, limits_));
    SHALE_RETURN_IF_ERROR(CheckPatterns(job, graphs.train, limits_));
    SHALE_ASSIGN_OR_RETURN(const Budget budget, BudgetOf(job, machine_.default_budget));
    if (ops_ == nullptr || ops_ranks_ != job.sharding.ranks) {
      ops_ranks_ = job.sharding.ranks;
      ops_ = machine_.create_ops(ops_ranks_);
    }
    SHALE_ASSIGN_OR_RETURN(const Choice choice,
                           ChooseAccumulation(graphs, StepOptionsFor(job), budget, *ops_, limits_));
    trial.accumulation = choice.options.accumulation;
    trial.arena_bytes = choice.trial.arena_bytes();
    trial.host_bytes = choice.trial.host_bytes();
    trial.fits = choice.fits;
    return absl::OkStatus();
  }

  // Returns the best value that fits. Assumes that every value worse than one that fits also fits. Returns
  // ResourceExhausted if it finds none.
  absl::StatusOr<int64_t> FindAnywhere() {
    int64_t good = start_;
    if (Fits(start_)) {
      int64_t beyond = start_;
      while (good != best_ && Fits(beyond = Leap(good, best_))) good = beyond;
      return good == best_ ? good : Bisect(good, beyond, best_);
    }
    int64_t bad = start_;
    while (bad != worst_ && !Fits(good = Leap(bad, worst_))) bad = good;
    if (bad != worst_) return Bisect(good, bad, best_);
    if (field_ == FitField::kRanks) {
      // With one micro-batch a step, gradients share bytes with activations. The fewest ranks with which that is so may
      // fit, although fewer do not, nor more, because of their padding.
      const int64_t one_micro_batch = CeilDivide(job_.batch.global_batch, job_.batch.micro_batch);
      if (one_micro_batch < worst_ && Fits(one_micro_batch)) return Bisect(one_micro_batch, start_, best_);
    }
    return NothingFits();
  }

  // Returns the best value that fits, between `good`, which fits, and `bad`, which does not. A thorough search also
  // tries a few values beyond the first one that does not fit, up to `limit`.
  int64_t Bisect(int64_t good, int64_t bad, int64_t limit) {
    while (std::abs(good - bad) > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (Fits(middle) ? good : bad) = middle;
    }
    if (effort_ == FitEffort::kQuick) return good;
    const int64_t step = bad - good;
    for (int64_t i = 0; i < kBeyond && bad != limit; ++i) {
      bad += step;
      if (!Fits(bad)) continue;
      good = bad;
      i = -1;
    }
    return good;
  }

  // Returns a micro-batch larger than `micro_batch` that fits, or `micro_batch` if there is none. A larger micro-batch
  // may need less memory, because it makes fewer accumulation steps K, and LAYERED keeps all K micro-batches. Among the
  // micro-batches with the same K the smallest one needs the least.
  int64_t LargerWithOtherSteps(int64_t micro_batch) {
    const Accumulation accumulation = job_.sharding.accumulation;
    if (accumulation != Accumulation::kLayered && accumulation != Accumulation::kAuto) return micro_batch;
    for (int64_t k = 1; k <= kMostSteps; ++k) {
      const int64_t smallest = CeilDivide(best_, k);
      if (smallest <= micro_batch) return micro_batch;
      if (!Fits(smallest)) continue;
      const int64_t steps = CeilDivide(best_, smallest);  // May be less than k: no micro-batch makes some values of K.
      const int64_t largest = steps == 1 ? best_ : (best_ - 1) / (steps - 1);
      return Fits(largest) ? largest : Bisect(smallest, largest, largest);
    }
    return micro_batch;
  }

  absl::Status NothingFits() {
    const FitTrial& trial = Try(worst_);
    const absl::StatusOr<Job> job = job_with_(worst_);
    const absl::StatusOr<Budget> budget = job.ok() ? BudgetOf(*job, machine_.default_budget) : job.status();
    std::string needs = std::string(trial.status.message());
    if (trial.status.ok() && budget.ok()) {
      needs = absl::StrCat("needs ", FormatBytes(trial.arena_bytes), " per rank");
      if (trial.host_bytes > 0) absl::StrAppend(&needs, " and ", FormatBytes(trial.host_bytes), " of host memory");
      absl::StrAppend(&needs, ", budget ", FormatBytes(budget->bytes));
      if (budget->host_bytes != kNoBudget) {
        absl::StrAppend(&needs, " and ", FormatBytes(budget->host_bytes), " of host memory");
      }
    }
    return absl::ResourceExhaustedError(absl::StrCat("no ", ToString(field_), " fits: ", worst_,
                                                     field_ == FitField::kRanks ? ", the most, " : " ", needs));
  }

  const FitField field_;
  const Job& job_;
  const absl::FunctionRef<absl::StatusOr<Job>(int64_t value)> job_with_;
  const Machine& machine_;
  const FitEffort effort_;
  const WorkLimits& limits_;
  int64_t start_ = 1;
  int64_t best_ = 1, worst_ = 1;  // The ends of the values to search.
  std::map<int64_t, FitTrial> trials_;
  std::unique_ptr<Ops> ops_;  // Created for `ops_ranks_` ranks.
  int64_t ops_ranks_ = 0;
};

}  // namespace

absl::string_view ToString(FitField field) {
  switch (field) {
    case FitField::kMicroBatch: return "batch.micro_batch";
    case FitField::kSequenceLength: return "batch.sequence_length";
    case FitField::kRanks: return "sharding.ranks";
  }
  return "?";
}

absl::StatusOr<FitField> ParseFitField(absl::string_view path) {
  std::string all;
  for (FitField field : kFields) {
    if (path == ToString(field)) return field;
    absl::StrAppend(&all, all.empty() ? "" : ", ", ToString(field));
  }
  return absl::InvalidArgumentError(absl::StrCat("found ", Quoted(path), "; allowed: ", all));
}

absl::StatusOr<Fit> FindFit(FitField field, const Job& job,
                            absl::FunctionRef<absl::StatusOr<Job>(int64_t value)> job_with, const Machine& machine,
                            FitEffort effort, const WorkLimits& limits) {
  if (field == FitField::kRanks && job.memory.budget_bytes == 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks can only be found for a given budget; set memory.budget_bytes to what one rank has");
  }
  const bool offloads =
      !job.memory.offload.empty() || job.memory.offload_state.any() || job.optimizer.device == UpdateDevice::kHost;
  if (field == FitField::kRanks && offloads && job.memory.host_budget_bytes == 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks of a job that offloads can only be found for a given host budget; set "
        "memory.host_budget_bytes to what one rank has");
  }
  if (field == FitField::kRanks && job.sharding.shard_ranks > 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks is found for one group of all ranks; leave sharding.shard_ranks out");
  }
  SHALE_ASSIGN_OR_RETURN(const Budget budget, BudgetOf(job, machine.default_budget));
  if (budget.bytes == kNoBudget) {
    return absl::InvalidArgumentError("there is no budget to fit; set memory.budget_bytes to what one rank has");
  }
  return Search(field, job, job_with, machine, effort, limits).Run();
}

}  // namespace shale
