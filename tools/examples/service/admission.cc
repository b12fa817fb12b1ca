#include "tools/examples/service/admission.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/shale.h"

namespace service {
namespace {

constexpr int64_t kSaveEverySteps = 100;
constexpr double kMib = 1 << 20;

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 100'000;  // Of a folder that a job reads.

bool IsInside(const std::string& path, const std::string& folder) { return absl::StartsWith(path, folder + "/"); }

// Returns an error unless the path is empty, or that of a file or folder inside of the data folder, which is canonical.
// Links are followed, also those in a folder, because the trainer follows them.
absl::Status CheckDataPath(absl::string_view field, const std::string& path, const std::string& data_folder) {
  if (path.empty()) return absl::OkStatus();
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("job: ", field, ": ", why));
  };
  const std::string normal = fs::path(path).lexically_normal();
  if (!IsInside(normal, data_folder)) {
    return refused("found a path outside of the data folder; give one that starts there, such as \"texts\"");
  }
  const std::string shown = normal.substr(data_folder.size() + 1);
  std::error_code error;
  std::vector<std::string> to_visit = {fs::canonical(normal, error)};
  if (error) return refused(absl::StrCat("there is no \"", shown, "\" in the data folder of the service"));
  std::set<std::string> seen(to_visit.begin(), to_visit.end());
  while (!to_visit.empty()) {
    const std::string visited = std::move(to_visit.back());
    to_visit.pop_back();
    if (!IsInside(visited, data_folder)) {
      return refused(
          absl::StrCat("a link at or in \"", shown, "\" leads out of the data folder; give a path without it"));
    }
    if (!fs::is_directory(visited, error)) continue;
    for (fs::directory_iterator entry(visited, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      const std::string real = fs::canonical(entry->path(), error);
      if (error) return refused(absl::StrCat("a link in \"", shown, "\" leads nowhere; give a path without it"));
      if (seen.insert(real).second) to_visit.push_back(real);
      if (seen.size() > kMostFiles)
        return refused(absl::StrCat("\"", shown, "\" has more than ", kMostFiles, " files"));
    }
    if (error) return refused(absl::StrCat("cannot read a folder of \"", shown, "\""));
  }
  return absl::OkStatus();
}

// Refuses what this service does not do, rather than leaving it out.
absl::Status CheckSupported(const shale::Job& job, const std::string& data_folder) {
  SHALE_RETURN_IF_ERROR(CheckDataPath("data.path", job.data.path, data_folder));
  SHALE_RETURN_IF_ERROR(CheckDataPath("data.evaluation_path", job.data.evaluation_path, data_folder));
  if (job.data.has_tokenizer()) {
    SHALE_RETURN_IF_ERROR(CheckDataPath("data.tokenizer", job.data.tokenizer, data_folder));
  }
  for (const shale::MixedData& mixed : job.data.mix) {
    SHALE_RETURN_IF_ERROR(CheckDataPath("data.mix", mixed.path, data_folder));
  }
  SHALE_RETURN_IF_ERROR(CheckDataPath("model.adapter.folder", job.adapter_folder, data_folder));
  for (const shale::EvaluationSource& source : job.data.evaluation_sources) {
    SHALE_RETURN_IF_ERROR(CheckDataPath("data.evaluation_sources", source.path, data_folder));
  }
  if (!job.data.cache.empty()) {
    return absl::InvalidArgumentError("job: data.cache: the service has its own folders; leave it out");
  }
  if (job.data.path.empty()) {
    return absl::InvalidArgumentError("job: data.path: missing; the service has no data of its own");
  }
  if (!job.hf_folder.empty()) {
    return absl::InvalidArgumentError("job: model.hf_folder: this service begins from random weights; leave it out");
  }
  if (job.telemetry.run_folder != absl::StrCat("runs/", job.name)) {
    return absl::InvalidArgumentError("job: telemetry.run_folder: the service has its own folders; leave it out");
  }
  if (job.telemetry.sinks != shale::SinksConfig()) {
    return absl::InvalidArgumentError("job: telemetry.sinks: the service keeps the events itself; leave it out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBudget(int64_t threads, int64_t bytes, const Budget& budget) {
  if (threads > budget.threads) {
    return absl::ResourceExhaustedError(absl::StrCat("the job takes ", threads, " threads, and the service has ",
                                                     budget.threads,
                                                     "; lower runtime.threads_per_rank or sharding.ranks"));
  }
  if (bytes > budget.bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "all ranks together take %.1f MiB, with pinned memory, and the service has %.1f MiB; lower sharding.ranks, or "
        "let the ranks share more (sharding.strategy)",
        bytes / kMib, budget.bytes / kMib));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdmittedJob> AdmitJob(absl::string_view text, const std::string& data_folder, const Budget& budget) {
  const std::string place = data_folder + "/job";  // Relative paths start beside it.
  absl::StatusOr<shale::Job> job = shale::ParseForeignJob(text, place);
  if (!job.ok()) return absl::InvalidArgumentError(absl::StrReplaceAll(job.status().message(), {{place, "job"}}));
  SHALE_RETURN_IF_ERROR(CheckSupported(*job, data_folder));
  if (job->checkpoint.every_steps == 0) job->checkpoint.every_steps = kSaveEverySteps;

  // The job says which ranks and threads it wants; a rank without threads gets its part of all. Ways out with more
  // ranks would not help, because all ranks share the budget.
  const int64_t ranks = job->sharding.ranks;
  const shale::AdmissionMachine machine = {.planning = shale::PlanningMachine,
                                           .hardware_threads = budget.threads,
                                           .most_ranks = std::min(ranks, budget.threads),
                                           .budget_bytes = budget.bytes / ranks};
  SHALE_RETURN_IF_ERROR(shale::DecideCpuMatMuls(*job).status());
  SHALE_ASSIGN_OR_RETURN(const shale::DataFacts data, shale::DataFactsForPlanning(*job));
  SHALE_ASSIGN_OR_RETURN(const shale::Admission admission, shale::Admit(*job, machine, {.data = data}));
  switch (admission.verdict) {
    case shale::Admission::Verdict::kInvalid: return absl::InvalidArgumentError(admission.text);
    case shale::Admission::Verdict::kDoesNotFit: return absl::ResourceExhaustedError(admission.text);
    case shale::Admission::Verdict::kFits: break;
  }
  const shale::Job& resolved = admission.resolved->job;
  const shale::JobPlan& plan = admission.resolved->plan;
  AdmittedJob admitted = {.job_text = shale::ResolvedJobText(resolved),
                          .plan = admission.text,
                          .threads = ranks * resolved.runtime.threads_per_rank,
                          .bytes = ranks * (plan.arena_bytes + plan.host_memory.total_bytes())};
  for (const std::string& remark : admission.remarks) absl::StrAppend(&admitted.plan, "; ", remark);
  SHALE_RETURN_IF_ERROR(CheckBudget(admitted.threads, admitted.bytes, budget));
  return admitted;
}

}  // namespace service
