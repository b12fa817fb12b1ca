// Fuzzes the parser of jobs that runs recorded.
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "tests/fuzz/job_properties.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void CheckRecordedJob(absl::string_view text) {
  const absl::StatusOr<Job> job = ParseRecordedJob(text, "the job");
  if (!job.ok()) return CheckRefusal(job.status());
  CheckPrintsAndParsesBack(*job);
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckRecordedJob({reinterpret_cast<const char*>(data), size});
  return 0;
}
