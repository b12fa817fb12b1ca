// Jobs of the C interface.
#include "engine/c/jobs.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/job.h"
#include "engine/c/calls.h"
#include "engine/c/shale.h"
#include "kernels/check.h"

namespace shale::c {

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

}  // namespace
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
