// Fuzzes the verdicts on jobs of others: whatever the job is, they take no more time and memory than they are given.
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/plan.h"
#include "engine/api/plan_text.h"
#include "kernels/check.h"
#include "proto/plan.pb.h"
#include "tests/engine/plan/planner/counted_memory.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr absl::Duration kTimeLimit = absl::Milliseconds(100);
constexpr int64_t kMemoryBytes = int64_t{48} << 20;
// How much longer than the limit a verdict takes: the longest stage that is not interrupted, with sanitizers.
constexpr absl::Duration kSlack = absl::Seconds(2);

// Returns the processor time of this thread. Other processes do not change it.
absl::Duration ThreadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

absl::StatusOr<Admission> AdmitWithinLimits(absl::string_view job, const AdmissionMachine& machine,
                                            const std::vector<std::string>& overrides = {}) {
  const absl::Duration begin = ThreadTime();
  CountMemory();
  absl::StatusOr<Admission> admission =
      Admit(job, machine, {.time_limit = kTimeLimit, .memory_bytes = kMemoryBytes}, overrides);
  const int64_t bytes = MostCountedBytes();
  SHALE_CHECK(bytes <= kMemoryBytes) << bytes << " bytes";
  const absl::Duration took = ThreadTime() - begin;
  SHALE_CHECK(took <= kTimeLimit + kSlack) << absl::FormatDuration(took);
  return admission;
}

// Checks that the message of a verdict says what the verdict says.
void CheckMessage(const Admission& admission) {
  proto::Plan plan;
  SHALE_CHECK(plan.ParseFromString(PlanMessage(admission)));
  SHALE_CHECK(plan.text() == admission.text);
  SHALE_CHECK(plan.verdict() != proto::Plan::VERDICT_UNSPECIFIED);
  SHALE_CHECK((plan.errors_size() > 0) == (admission.verdict == Admission::Verdict::kInvalid));
  SHALE_CHECK(plan.has_memory() == (admission.verdict == Admission::Verdict::kFits));
}

void CheckAdmission(absl::string_view job, const AdmissionMachine& machine) {
  const absl::StatusOr<Admission> admission = AdmitWithinLimits(job, machine);
  if (!admission.ok()) {
    SHALE_CHECK(absl::IsDeadlineExceeded(admission.status()) || absl::IsResourceExhausted(admission.status()))
        << admission.status();
    return CheckRefusal(absl::InvalidArgumentError(admission.status().message()));
  }
  CheckMessage(*admission);
  if (admission->verdict != Admission::Verdict::kFits) CheckRefusal(absl::InvalidArgumentError(admission->text));
  if (!admission->refusal || admission->refusal->ways_out.empty()) return;
  // The job fits with a way out, if there is time to find that again.
  std::vector<std::string> settings;
  for (const Override& change : admission->refusal->ways_out.front().overrides) {
    settings.push_back(absl::StrCat(change.path, "=", change.value));
  }
  const absl::StatusOr<Admission> changed = AdmitWithinLimits(job, machine, settings);
  if (!changed.ok()) return;
  SHALE_CHECK(changed->verdict == Admission::Verdict::kFits) << settings.front() << ": " << changed->text;
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const shale::DeviceType device : {shale::DeviceType::kCpu, shale::DeviceType::kCuda}) {
    shale::CheckAdmission({reinterpret_cast<const char*>(data), size},
                          {.planning = [](const shale::Job&, int64_t) { return shale::MachineOf(); },
                           .device = device,
                           .budget_bytes = int64_t{1} << 26,
                           .host_budget_bytes = int64_t{1} << 26});
  }
  return 0;
}
