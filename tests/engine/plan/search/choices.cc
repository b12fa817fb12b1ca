#include "tests/engine/plan/search/choices.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/search/search.h"
#include "engine/plan/time/profile.h"
#include "engine/run/backends/cuda_planning.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

std::string CostOf(const Variant& way) {
  return absl::StrCat(FormatSeconds(way.cost.seconds), " and ", CostText(way.cost));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SearchedJobs() {
  return {{"gpt2_124m", "h100x8"},  {"qwen2_5_0_5b", "h100x8"}, {"qwen2_5_0_5b", "h200x8"}, {"qwen2_5_1_5b", "h200x8"},
          {"qwen2_5_3b", "h200x8"}, {"qwen2_5_7b", "h200x8"},   {"qwen2_5_14b", "h200x8"},  {"llama3_8b", "h100x8"},
          {"llama2_7b", "a100x8"},  {"llama2_70b", "h200x8"},   {"llama3_405b", "h100x8"},  {"falcon_7b", "a100x8"},
          {"falcon_40b", "h100x8"}, {"gemma2_2b", "h100x8"},    {"gemma3_1b", "b200x8"},    {"quickstart", "h100x8"}};
}

std::string HeadOf(const std::string& job, const std::string& machine) { return absl::StrCat(job, " on ", machine); }

absl::StatusOr<std::string> ChoicesOf(const std::string& job_name, const std::string& machine_name) {
  SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(absl::StrCat("tools/jobs/", job_name, ".textproto"),
                                          {"runtime.device=CUDA", "memory.budget_bytes=0"}));
  SHALE_ASSIGN_OR_RETURN(const DataFacts facts, DataFactsWithoutReading(job, {}));
  ApplyDataFacts(facts, job);
  SHALE_ASSIGN_OR_RETURN(proto::MachineProfile profile, ReadProfile(machine_name));
  const auto no_host_ops = [](int64_t) -> std::unique_ptr<Ops> { return nullptr; };
  SHALE_ASSIGN_OR_RETURN(Machine machine,
                         CudaPlanningMachine(job, /*cudnn=*/true, no_host_ops, profile.threads(), &profile));
  machine.default_budget = BudgetOn(profile);
  machine.profile = std::make_shared<const proto::MachineProfile>(std::move(profile));
  SHALE_ASSIGN_OR_RETURN(const SearchResult found, FindFastest({.job = job, .machine = machine}));
  std::string text =
      absl::StrCat(HeadOf(job_name, machine_name), "\n", CostOf(found.best), ", of ", FormatBytes(found.budget.bytes),
                   "; as it is written ", CostOf(found.own), found.own.fits ? "" : ", which does not fit", "\n");
  for (const Override& setting : found.best.overrides) absl::StrAppend(&text, "  ", setting.text(), "\n");
  return text;
}

}  // namespace shale
