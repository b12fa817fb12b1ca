#include "engine/plan/planner/fit.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

constexpr absl::string_view kRanks = "sharding.ranks";

// How many further values are tried beyond the first one that does not fit.
constexpr int64_t kBeyond = 3;
// The most steps of accumulation for which larger micro-batches are tried: each takes the time of a plan.
constexpr int64_t kMostSteps = 64;

class Search {
 public:
  Search(const Option& option, const Job& job, const JobWith& job_with, const Machine& machine, const Budget& budget,
         FitEffort effort, const WorkLimits& limits)
      : option_(option),
        job_(job),
        budget_(budget),
        range_(option.range(job)),
        effort_(effort),
        limits_(limits),
        drafter_(job, machine, limits, job_with) {
    range_.start = std::clamp(range_.start, std::min(range_.best, range_.worst), std::max(range_.best, range_.worst));
    sequences_ = range_.best;
  }

  // What was found after a limit was reached is not the best value, so nothing is returned then.
  absl::StatusOr<Fit> Run() {
    absl::StatusOr<Fit> fit = Find();
    SHALE_RETURN_IF_ERROR(limits_.Check());
    return fit;
  }

 private:
  absl::StatusOr<Fit> Find() {
    const absl::Status& own = Try(ranks() ? job_.sharding.ranks : range_.start).status;
    if (absl::IsInvalidArgument(own)) return own;
    TakeMultiples();
    SHALE_ASSIGN_OR_RETURN(int64_t value, FindAnywhere());
    if (option_.path == "batch.micro_batch" && effort_ == FitEffort::kThorough) value = LargerWithOtherSteps(value);
    Fit fit{.value = value, .best = Try(value), .budget = budget_};
    if (value != range_.best) {
      fit.next = Try(range_.best < range_.worst ? value - 1 : value + multiple_);
    } else {
      fit.last = std::string(range_.last);
    }
    return fit;
  }

  bool ranks() const { return option_.path == kRanks; }

  // Searches only among the multiples of a number, if the job rules out all others: matmuls in fp8 sum over the tokens
  // of a micro-batch where weights train.
  void TakeMultiples() {
    if (ranks() || job_.precision.matmuls != MatMulPrecision::kFloat8) return;
    const BatchConfig& batch = job_.batch;
    const int64_t other = option_.path == "batch.micro_batch" ? batch.sequence_length : batch.micro_batch;
    const int64_t multiple = kFloat8Multiple / std::gcd(other, kFloat8Multiple);
    const auto down = [multiple](int64_t value) { return value / multiple * multiple; };
    if (multiple == 1 || down(range_.best) == 0 || !absl::IsInvalidArgument(Try(multiple - 1).status)) return;
    multiple_ = multiple;
    range_.best = down(range_.best);
    range_.worst = CeilDivide(range_.worst, multiple) * multiple;
    range_.start = std::max(down(range_.start), range_.worst);
    range_.hint = down(range_.hint);
  }

  std::vector<Override> SettingOf(int64_t value) const { return {{std::string(option_.path), absl::StrCat(value)}}; }

  // Returns `value` doubled or halved towards `limit`, but not beyond `limit`.
  int64_t Leap(int64_t value, int64_t limit) const {
    return limit > value ? std::min(2 * value, limit) : std::max(Half(value), limit);
  }
  // Returns half of a difference or value, rounded towards 0 to a multiple.
  int64_t Half(int64_t value) const { return value / 2 / multiple_ * multiple_; }

  bool Fits(int64_t value) { return Try(value).fits; }

  const Variant& Try(int64_t value) {
    const auto [it, added] = tried_.try_emplace(value);
    if (added) it->second = drafter_.Try(SettingOf(value));
    return it->second;
  }

  // Returns the best value that fits. Assumes that every value worse than one that fits also fits. Returns
  // ResourceExhausted if it finds none.
  absl::StatusOr<int64_t> FindAnywhere() {
    int64_t good = range_.start;
    if (Fits(range_.start)) {
      int64_t beyond = range_.start;
      while (good != range_.best && Fits(beyond = Leap(good, range_.best))) good = beyond;
      return good == range_.best ? good : Bisect(good, beyond, range_.best);
    }
    int64_t bad = range_.start;
    while (bad != range_.worst && !Fits(good = Leap(bad, range_.worst))) bad = good;
    if (bad != range_.worst) return Bisect(good, bad, range_.best);
    const int64_t hint = range_.hint;
    if (hint > 0 && hint < range_.worst && Fits(hint)) return Bisect(hint, range_.start, range_.best);
    // One accumulation step may need less than several of a smaller micro-batch.
    if (option_.path == "batch.micro_batch" && Fits(range_.best)) return range_.best;
    return NothingFits();
  }

  // Returns the best value that fits, between `good`, which fits, and `bad`, which does not. A thorough search also
  // tries a few values beyond the first one that does not fit, up to `limit`.
  int64_t Bisect(int64_t good, int64_t bad, int64_t limit) {
    while (std::abs(good - bad) > multiple_) {
      const int64_t middle = good + Half(bad - good);
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
      const int64_t smallest = CeilDivide(CeilDivide(sequences_, k), multiple_) * multiple_;
      if (smallest <= micro_batch) return micro_batch;
      if (smallest > range_.best || !Fits(smallest)) continue;
      // May be less than k: no micro-batch makes some values of K.
      const int64_t steps = CeilDivide(sequences_, smallest);
      const int64_t same = steps == 1 ? range_.best : (sequences_ - 1) / (steps - 1);
      const int64_t largest = same / multiple_ * multiple_;
      return Fits(largest) ? largest : Bisect(smallest, largest, largest);
    }
    return micro_batch;
  }

  absl::Status NothingFits() {
    const Variant& tried = Try(range_.worst);
    const std::string why = tried.status.ok()
                                ? absl::StrCat(ranks() ? ", the most, " : " ", MissingText(tried.cost, budget_))
                                : absl::StrCat(" is not possible: ", tried.status.message());
    return absl::ResourceExhaustedError(absl::StrCat("no ", option_.path, " fits: ", range_.worst, why));
  }

  const Option& option_;
  const Job& job_;
  const Budget& budget_;
  FitRange range_;
  int64_t sequences_ = 1;  // The largest micro-batch.
  int64_t multiple_ = 1;   // The values that are tried are multiples of it.
  const FitEffort effort_;
  const WorkLimits& limits_;
  Drafter drafter_;
  std::map<int64_t, Variant> tried_;
};

// The default budget of a machine depends on the ranks, which share its memory.
absl::Status CheckRanksCanBeFound(const Job& job) {
  if (job.memory.budget_bytes == 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks can only be found for a given budget; set memory.budget_bytes to what one rank has");
  }
  const bool offloads =
      !job.memory.offload.empty() || job.memory.offload_state.any() || job.optimizer.device == UpdateDevice::kHost;
  if (offloads && job.memory.host_budget_bytes == 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks of a job that offloads can only be found for a given host budget; set "
        "memory.host_budget_bytes to what one rank has");
  }
  if (job.sharding.shard_ranks > 0) {
    return absl::InvalidArgumentError(
        "sharding.ranks is found for one group of all ranks; leave sharding.shard_ranks out");
  }
  return absl::OkStatus();
}

}  // namespace

std::string FitText(const Fit& fit) {
  const auto bytes = [](const Cost& cost) {
    return absl::StrCat(" needs ", CostText(cost), " (", WithCommas(cost.arena_bytes), " bytes)");
  };
  const auto seconds = [](const Cost& cost) {
    if (cost.seconds <= 0) return std::string();
    return absl::StrCat(" and takes ", FormatSeconds(cost.seconds), " a step", cost.covered() ? "" : ", estimated");
  };
  const Cost& cost = fit.best.cost;
  const std::string text = absl::StrCat(fit.best.overrides.front().text(), " fits: ", ToString(fit.best.accumulation),
                                        bytes(cost), " per rank, budget ", FormatBytes(fit.budget.bytes),
                                        fit.budget.origin.empty() ? "" : absl::StrCat(" (", fit.budget.origin, ")"),
                                        cost.seconds > 0 ? "," : "", seconds(cost), "; ");
  if (!fit.next) return absl::StrCat(text, fit.last);
  const std::string& next = fit.next->overrides.front().value;
  const absl::Status& status = fit.next->status;
  if (status.ok()) return absl::StrCat(text, next, bytes(fit.next->cost), seconds(fit.next->cost));
  return absl::StrCat(text, next, " is not possible: ", absl::StrReplaceAll(status.message(), {{"\n", "; "}}));
}

std::vector<std::string> FitFields() {
  std::vector<std::string> fields;
  for (const Option& option : Options()) {
    if (option.range != nullptr) fields.emplace_back(option.path);
  }
  return fields;
}

absl::Status CheckFitField(absl::string_view path) {
  const std::vector<std::string> fields = FitFields();
  if (std::find(fields.begin(), fields.end(), path) != fields.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found ", Quoted(path), "; allowed: ", absl::StrJoin(fields, ", ")));
}

absl::StatusOr<Fit> FindFit(absl::string_view path, const Job& job, const JobWith& job_with, const Machine& machine,
                            FitEffort effort, const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(CheckFitField(path));
  if (path == kRanks) SHALE_RETURN_IF_ERROR(CheckRanksCanBeFound(job));
  SHALE_ASSIGN_OR_RETURN(const Budget budget, BudgetOf(job, machine.default_budget));
  if (budget.bytes == kNoBudget) {
    return absl::InvalidArgumentError("there is no budget to fit; set memory.budget_bytes to what one rank has");
  }
  const auto has_range = [&](const Option& option) { return option.path == path && option.range != nullptr; };
  const Option& option = *std::find_if(Options().begin(), Options().end(), has_range);
  return Search(option, job, job_with, machine, budget, effort, limits).Run();
}

}  // namespace shale
