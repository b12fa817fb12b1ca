// Fuzzes the parser of jobs that runs recorded, which translates former words first.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/config/old_words.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "kernels/check.h"
#include "tests/fuzz/job_properties.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void Check(absl::string_view text) {
  // What is translated has no former words left.
  const std::string today = InTodaysWords(text);
  SHALE_CHECK(InTodaysWords(today) == today) << today;
  const absl::StatusOr<Job> job = ParseRecordedJob(text, "the job");
  if (!job.ok()) return CheckRefusal(job.status());
  CheckPrintsAndParsesBack(*job);
  // What this version records is not changed.
  const std::string recorded = ResolvedJobText(*job);
  SHALE_CHECK(InTodaysWords(recorded) == recorded) << recorded;
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
