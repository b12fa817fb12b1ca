// Admission through the C interface.
//
// Checks of jobs through the C interface.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/backend.h"
#include "engine/api/data_source.h"
#include "engine/api/plan.h"
#include "engine/api/plan_text.h"
#include "engine/api/verify.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/jobs.h"
#include "engine/c/shale.h"
#include "engine/c/trainers.h"
#include "engine/run/runtime/backend.h"
#include "kernels/check.h"
#include "kernels/hardware_threads.h"

namespace shale::c {
namespace {

struct KeptWayOut {
  std::vector<std::string> overrides;
  std::vector<const char*> texts;  // Of `overrides`.
  Variant way;
};

// What a handle of an admission stands for. It has no plan, so that it stays small however large the job is.
struct KeptAdmission {
  shale_admission_summary summary;
  std::string text, json, message;
  std::vector<KeptWayOut> ways_out;
};

Handles<const KeptAdmission>& Admissions() {
  static auto& admissions = *new Handles<const KeptAdmission>(HandleKind::kAdmission, "admission");
  return admissions;
}

absl::StatusOr<AdmissionMachine> MachineOf(const shale_admission_options& given) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (given.device != SHALE_CPU && given.device != SHALE_CUDA) {
    return absl::InvalidArgumentError(absl::StrCat("device is ", given.device, "; allowed: SHALE_CPU, SHALE_CUDA"));
  }
  SHALE_RETURN_IF_ERROR(CheckRange("", "hardware_threads", given.hardware_threads, 0, int64_t{1} << 20));
  SHALE_RETURN_IF_ERROR(CheckRange("", "most_ranks", given.most_ranks, 0, kMost));
  SHALE_RETURN_IF_ERROR(CheckRange("", "budget_bytes", given.budget_bytes, 0, kMost));
  SHALE_RETURN_IF_ERROR(CheckRange("", "host_budget_bytes", given.host_budget_bytes, 0, kMost));
  AdmissionMachine machine = {.planning = PlanningMachine,
                              .device = given.device == SHALE_CPU ? DeviceType::kCpu : DeviceType::kCuda,
                              .hardware_threads = HardwareThreads()};
  const auto set = [](int64_t value, int64_t& member) {
    if (value > 0) member = value;
  };
  set(given.hardware_threads, machine.hardware_threads);
  set(given.most_ranks, machine.most_ranks);
  set(given.budget_bytes, machine.budget_bytes);
  set(given.host_budget_bytes, machine.host_budget_bytes);
  return machine;
}

absl::StatusOr<AdmissionOptions> OptionsOf(const shale_admission_options& given) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  SHALE_RETURN_IF_ERROR(CheckRange("", "vocabulary", given.vocabulary, 0, int64_t{1} << 31));
  SHALE_RETURN_IF_ERROR(CheckSeconds(given.seconds));
  SHALE_RETURN_IF_ERROR(CheckRange("", "memory_bytes", given.memory_bytes, 0, kMost));
  SHALE_RETURN_IF_ERROR(CheckRange("", "job_bytes", given.job_bytes, 0, kMost));
  AdmissionOptions options;
  options.data.vocabulary = given.vocabulary;
  if (given.seconds > 0) options.time_limit = absl::Seconds(given.seconds);
  if (given.memory_bytes > 0) options.memory_bytes = given.memory_bytes;
  if (given.job_bytes > 0) options.job_bytes = given.job_bytes;
  return options;
}

int32_t VerdictOf(Admission::Verdict verdict) {
  if (verdict == Admission::Verdict::kFits) return SHALE_FITS;
  return verdict == Admission::Verdict::kDoesNotFit ? SHALE_DOES_NOT_FIT : SHALE_INVALID;
}

KeptWayOut Kept(const Variant& way) {
  KeptWayOut kept{.way = way};
  for (const Override& change : way.overrides) kept.overrides.push_back(change.text());
  for (const std::string& text : kept.overrides) kept.texts.push_back(text.c_str());
  return kept;
}

std::shared_ptr<const KeptAdmission> Kept(const Admission& admission) {
  auto kept = std::make_shared<KeptAdmission>();
  kept->summary = SHALE_INIT(shale_admission_summary);
  kept->summary.verdict = VerdictOf(admission.verdict);
  if (admission.resolved) {
    kept->summary.arena_bytes = admission.resolved->plan.arena_bytes;
    kept->summary.host_bytes = admission.resolved->plan.train.memory.host_bytes;
  }
  if (admission.refusal) {
    kept->summary.arena_bytes = admission.refusal->cost.arena_bytes;
    kept->summary.host_bytes = admission.refusal->cost.host_bytes;
    kept->summary.search_ended_early = admission.refusal->search_ended_early ? 1 : 0;
    kept->ways_out.reserve(admission.refusal->ways_out.size());
    for (const Variant& way : admission.refusal->ways_out) kept->ways_out.push_back(Kept(way));
  }
  kept->summary.ways_out = std::ssize(kept->ways_out);
  kept->text = admission.text;
  kept->json = PlanJson(admission);
  kept->message = PlanMessage(admission);
  return kept;
}

// Calls `admit` with what the caller's options mean, and keeps the verdict.
absl::Status AdmitWith(
    const shale_admission_options* options, shale_admission* admission,
    absl::FunctionRef<absl::StatusOr<Admission>(const AdmissionMachine&, const AdmissionOptions&)> admit) {
  SHALE_RETURN_IF_ERROR(Require(admission, "admission"));
  shale_admission_options given = {};
  if (options != nullptr) {
    SHALE_ASSIGN_OR_RETURN(given, TakeStruct(options, "options"));
  }
  SHALE_ASSIGN_OR_RETURN(const AdmissionMachine machine, MachineOf(given));
  SHALE_ASSIGN_OR_RETURN(AdmissionOptions limits, OptionsOf(given));
  SHALE_ASSIGN_OR_RETURN(const std::shared_ptr<const std::atomic<bool>> cancelled, TakeStop(given.stop));
  limits.cancelled = cancelled.get();
  SHALE_ASSIGN_OR_RETURN(const Admission admitted, admit(machine, limits));
  SHALE_ASSIGN_OR_RETURN(*admission, Admissions().Add(Kept(admitted)));
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> TextIn(int32_t form, const KeptAdmission& admission) {
  switch (form) {
    case SHALE_ADMISSION_TEXT: return admission.text;
    case SHALE_ADMISSION_JSON: return admission.json;
    case SHALE_ADMISSION_PROTO: return admission.message;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("form is ", form, "; allowed: SHALE_ADMISSION_TEXT and those after it"));
  }
}

shale_way_out CWayOut(const KeptWayOut& kept) {
  shale_way_out out = SHALE_INIT(shale_way_out);
  out.overrides = kept.texts.data();
  out.override_count = kept.texts.size();
  out.arena_bytes = kept.way.cost.arena_bytes;
  out.host_bytes = kept.way.cost.host_bytes;
  out.recompute_flops = kept.way.cost.flops.recompute;
  out.caveat = kept.way.caveat.c_str();
  return out;
}

Handles<const VerifyReport>& Verifications() {
  static auto& verifications = *new Handles<const VerifyReport>(HandleKind::kVerification, "verification");
  return verifications;
}

int32_t OutcomeOf(VerifyOutcome outcome) {
  if (outcome == VerifyOutcome::kHolds) return SHALE_CHECK_HOLDS;
  return outcome == VerifyOutcome::kFails ? SHALE_CHECK_FAILS : SHALE_CHECK_NOT_RUN;
}

// The result points to the texts of `row`.
shale_check CheckOf(const VerifyRow& row) {
  shale_check check = SHALE_INIT(shale_check);
  check.name = row.check.c_str();
  check.against = row.against.c_str();
  check.outcome = OutcomeOf(row.outcome);
  check.difference = row.difference;
  check.tolerance = row.tolerance;
  check.remark = row.remark.c_str();
  return check;
}

absl::StatusOr<uint64_t> RunChecks(Job job, const shale_verify_options& given) {
  VerifyOptions options;
  SHALE_RETURN_IF_ERROR(CheckSeconds(given.seconds));
  if (given.seconds > 0) options.seconds = given.seconds;
  if (given.temporary_folder != nullptr) options.temporary_folder = given.temporary_folder;
  SHALE_ASSIGN_OR_RETURN(const std::shared_ptr<const std::atomic<bool>> cancelled, TakeStop(given.stop));
  options.cancelled = cancelled.get();
  if (given.model != nullptr) {
    SHALE_ASSIGN_OR_RETURN(options.model, MakeModel(given.model));
  }
  std::unique_ptr<DataSource> data;
  if (given.data != nullptr) {
    SHALE_ASSIGN_OR_RETURN(data, MakeDataSource(given.data, "data"));
  }
  options.data = data.get();
  if (given.on_check != nullptr) {
    options.on_row = [&](const VerifyRow& row) {
      const shale_check check = CheckOf(row);
      given.on_check(given.on_check_user, &check);
    };
  }
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  options.backend = backend.get();
  SHALE_ASSIGN_OR_RETURN(VerifyReport report, Verify(job, options));
  return Verifications().Add(std::make_shared<const VerifyReport>(std::move(report)));
}

shale_verification_summary Summary(const VerifyReport& report) {
  shale_verification_summary summary = SHALE_INIT(shale_verification_summary);
  const auto count = [&](VerifyOutcome outcome) {
    return std::count_if(report.rows.begin(), report.rows.end(),
                         [&](const VerifyRow& row) { return row.outcome == outcome; });
  };
  summary.passed = report.holds() ? 1 : 0;
  summary.checks = std::ssize(report.rows);
  summary.failed = count(VerifyOutcome::kFails);
  summary.not_run = count(VerifyOutcome::kNotRun);
  summary.seconds = report.seconds;
  return summary;
}

}  // namespace

}  // namespace shale::c

using shale::c::Admissions;
using shale::c::AdmitWith;
using shale::c::Call;

shale_code shale_admit(const char* job, size_t job_bytes, const char* const* overrides, size_t override_count,
                       const shale_admission_options* options, shale_admission* admission, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(shale::c::Require(job, "job"));
    SHALE_ASSIGN_OR_RETURN(const auto set, shale::c::TakeOverrides(overrides, override_count));
    return AdmitWith(options, admission, [&](const auto& machine, const auto& limits) {
      return shale::Admit(absl::string_view(job, job_bytes), machine, limits, set);
    });
  });
}

shale_code shale_admit_job(shale_job job, const struct shale_model* model, const shale_admission_options* options,
                           shale_admission* admission, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Jobs().Share(job));
    shale::Job planned = *shared;
    SHALE_RETURN_IF_ERROR(shale::c::GiveModel(model, planned));
    return AdmitWith(options, admission,
                     [&](const auto& machine, const auto& limits) { return shale::Admit(planned, machine, limits); });
  });
}

shale_code shale_admission_get_summary(shale_admission admission, shale_admission_summary* summary,
                                       shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto kept, Admissions().Share(admission));
    return shale::c::GiveStruct(kept->summary, summary, "summary");
  });
}

shale_code shale_admission_text(shale_admission admission, int32_t form, char* buffer, size_t capacity, size_t* needed,
                                shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto kept, Admissions().Share(admission));
    SHALE_ASSIGN_OR_RETURN(const absl::string_view text, shale::c::TextIn(form, *kept));
    return shale::c::GiveText(text, buffer, capacity, needed);
  });
}

shale_code shale_admission_get_way_out(shale_admission admission, int64_t index, shale_way_out* way_out,
                                       shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto kept, Admissions().Share(admission));
    SHALE_RETURN_IF_ERROR(shale::c::CheckIndex(index, std::ssize(kept->ways_out), "way out"));
    return shale::c::GiveStruct(shale::c::CWayOut(kept->ways_out[index]), way_out, "way_out");
  });
}

shale_code shale_admission_free(shale_admission admission, shale_error* error) {
  return Call(error, [&] { return Admissions().Free(admission); });
}

using shale::c::Verifications;

shale_code shale_verify(shale_job job, const shale_verify_options* options, shale_verification* verification,
                        shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(shale::c::Require(verification, "verification"));
    SHALE_RETURN_IF_ERROR(shale::c::Trainers().CheckProcess());
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Jobs().Share(job));
    shale_verify_options given = {};
    if (options != nullptr) {
      SHALE_ASSIGN_OR_RETURN(given, shale::c::TakeStruct(options, "options"));
    }
    SHALE_ASSIGN_OR_RETURN(*verification, shale::c::RunChecks(*shared, given));
    return absl::OkStatus();
  });
}

shale_code shale_verification_get_summary(shale_verification verification, shale_verification_summary* summary,
                                          shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto report, Verifications().Share(verification));
    return shale::c::GiveStruct(shale::c::Summary(*report), summary, "summary");
  });
}

shale_code shale_verification_get_check(shale_verification verification, int64_t index, shale_check* check,
                                        shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto report, Verifications().Share(verification));
    SHALE_RETURN_IF_ERROR(shale::c::CheckIndex(index, std::ssize(report->rows), "check"));
    return shale::c::GiveStruct(shale::c::CheckOf(report->rows[index]), check, "check");
  });
}

shale_code shale_verification_text(shale_verification verification, char* buffer, size_t capacity, size_t* needed,
                                   shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto report, Verifications().Share(verification));
    return shale::c::GiveText(report->Text(), buffer, capacity, needed);
  });
}

shale_code shale_verification_free(shale_verification verification, shale_error* error) {
  return Call(error, [&] { return Verifications().Free(verification); });
}
