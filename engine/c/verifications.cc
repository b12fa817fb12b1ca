// Checks of jobs through the C interface.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/data_source.h"
#include "engine/api/verify.h"
#include "engine/c/calls.h"
#include "engine/c/data.h"
#include "engine/c/handles.h"
#include "engine/c/jobs.h"
#include "engine/c/model.h"
#include "engine/c/shale.h"
#include "engine/c/stops.h"
#include "engine/c/trainers.h"
#include "engine/runtime/backend.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

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
  SHALE_RETURN_IF_ERROR(DecideCpuProducts(job).status());
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

using shale::c::Call;
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
