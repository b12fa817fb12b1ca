// Jobs of the C interface.
//
// Plans of the C interface.

#include "engine/c/jobs.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/plan_text.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/shale.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain.h"
#include "engine/plan/report/plan_html.h"
#include "engine/run/runtime/backend.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

absl::StatusOr<ModelFrom> TakeFlags(uint32_t flags) {
  if (flags == 0) return ModelFrom::kJob;
  if (flags == SHALE_MODEL_FROM_PROGRAM) return ModelFrom::kProgram;
  return absl::InvalidArgumentError(absl::StrCat("flags is ", flags, "; allowed: 0, SHALE_MODEL_FROM_PROGRAM"));
}

absl::Status Keep(absl::StatusOr<Job> job, shale_job* out) {
  if (!job.ok()) return job.status();
  SHALE_ASSIGN_OR_RETURN(*out, Jobs().Add(std::make_shared<const Job>(*std::move(job))));
  return absl::OkStatus();
}

// What a handle of a plan stands for.
struct KeptPlan {
  std::unique_ptr<Backend> backend;  // Whose machine the plan is made for.
  ResolvedJob resolved;
};

Handles<const KeptPlan>& Plans() {
  static auto& plans = *new Handles<const KeptPlan>(HandleKind::kPlan, "plan");
  return plans;
}

absl::StatusOr<uint64_t> MakePlan(Job job, const shale_model* model) {
  SHALE_RETURN_IF_ERROR(GiveModel(model, job));
  SHALE_ASSIGN_OR_RETURN(const DataFacts data, DataFactsForPlanning(job));
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(ResolvedJob resolved, ResolveJob(std::move(job), data, backend->machine()));
  return Plans().Add(
      std::make_shared<const KeptPlan>(KeptPlan{.backend = std::move(backend), .resolved = std::move(resolved)}));
}

shale_plan_summary Summary(const ResolvedJob& resolved) {
  const auto& [job, plan] = resolved;
  const StepProgram& program = plan.train.step.program;
  shale_plan_summary summary = SHALE_INIT(shale_plan_summary);
  summary.ranks = plan.options.mesh.ranks();
  summary.micro_batches = plan.options.micro_batches;
  summary.parameters = CountParameters(plan.train.graph);
  summary.arena_bytes = plan.arena_bytes;
  summary.peak_bytes = plan.train.memory.peak_bytes;
  summary.persistent_bytes = plan.train.memory.persistent_bytes;
  summary.host_bytes = plan.host_memory.total_bytes();
  summary.budget_bytes = plan.budget.bytes == kNoBudget ? 0 : plan.budget.bytes;
  summary.sent_bytes = SummarizeCommunication(program, plan.options.mesh).sent_bytes;
  summary.flops_per_token = ModelFlopsPerToken(job, plan.train.graph);
  return summary;
}

}  // namespace

Handles<const Job>& Jobs() {
  // Never destroyed: threads of the host program may call to its very end.
  static auto& jobs = *new Handles<const Job>(HandleKind::kJob, "job");
  return jobs;
}

absl::StatusOr<std::vector<std::string>> TakeOverrides(const char* const* overrides, size_t count) {
  constexpr size_t kMostOverrides = 10'000;
  std::vector<std::string> taken;
  if (count == 0) return taken;
  SHALE_RETURN_IF_ERROR(Require(overrides, "overrides"));
  if (count > kMostOverrides) {
    return absl::InvalidArgumentError(absl::StrCat("found ", count, " overrides; allowed are ", kMostOverrides));
  }
  for (size_t i = 0; i < count; ++i) {
    SHALE_RETURN_IF_ERROR(Require(overrides[i], absl::StrCat("overrides[", i, "]")));
    taken.emplace_back(overrides[i]);
  }
  return taken;
}

absl::StatusOr<std::string> PlanIn(int32_t form, const Job& job, const JobPlan& plan, const Machine& machine) {
  switch (form) {
    case SHALE_PLAN_TEXT: return PlanText(job, plan);
    case SHALE_PLAN_JSON: return PlanJson(job, plan, PlanDetail::kBuffers);
    case SHALE_PLAN_EXPLAIN: return ExplainText(job, plan, machine);
    case SHALE_PLAN_PROGRAM: return ProgramText(job, plan);
    case SHALE_PLAN_HTML: return PlanHtml(job, plan);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("form is ", form, "; allowed: SHALE_PLAN_TEXT and those after it"));
  }
}

}  // namespace shale::c

using shale::c::Call;
using shale::c::Require;

shale_code shale_job_load(const char* path, const char* const* overrides, size_t override_count, uint32_t flags,
                          shale_job* job, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(path, "path"));
    SHALE_RETURN_IF_ERROR(Require(job, "job"));
    SHALE_ASSIGN_OR_RETURN(const auto set, shale::c::TakeOverrides(overrides, override_count));
    SHALE_ASSIGN_OR_RETURN(const shale::ModelFrom model, shale::c::TakeFlags(flags));
    return shale::c::Keep(shale::LoadJob(path, set, model), job);
  });
}

shale_code shale_job_parse(const char* text, const char* name, const char* const* overrides, size_t override_count,
                           uint32_t flags, shale_job* job, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(text, "text"));
    SHALE_RETURN_IF_ERROR(Require(job, "job"));
    SHALE_ASSIGN_OR_RETURN(const auto set, shale::c::TakeOverrides(overrides, override_count));
    SHALE_ASSIGN_OR_RETURN(const shale::ModelFrom model, shale::c::TakeFlags(flags));
    return shale::c::Keep(shale::ParseJobText(text, name == nullptr ? "job" : name, set, model), job);
  });
}

shale_code shale_job_text(shale_job job, char* buffer, size_t capacity, size_t* needed, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Jobs().Share(job));
    return shale::c::GiveText(shale::ResolvedJobText(*shared), buffer, capacity, needed);
  });
}

shale_code shale_job_free(shale_job job, shale_error* error) {
  return Call(error, [&] { return shale::c::Jobs().Free(job); });
}

shale_code shale_plan_create(shale_job job, const struct shale_model* model, shale_plan* plan, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(shale::c::Require(plan, "plan"));
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Jobs().Share(job));
    SHALE_ASSIGN_OR_RETURN(*plan, shale::c::MakePlan(*shared, model));
    return absl::OkStatus();
  });
}

shale_code shale_plan_get_summary(shale_plan plan, shale_plan_summary* summary, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto kept, shale::c::Plans().Share(plan));
    return shale::c::GiveStruct(shale::c::Summary(kept->resolved), summary, "summary");
  });
}

shale_code shale_plan_text(shale_plan plan, int32_t form, char* buffer, size_t capacity, size_t* needed,
                           shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto kept, shale::c::Plans().Share(plan));
    const auto& [job, planned] = kept->resolved;
    SHALE_ASSIGN_OR_RETURN(const std::string text, shale::c::PlanIn(form, job, planned, kept->backend->machine()));
    return shale::c::GiveText(text, buffer, capacity, needed);
  });
}

shale_code shale_plan_free(shale_plan plan, shale_error* error) {
  return Call(error, [&] { return shale::c::Plans().Free(plan); });
}
