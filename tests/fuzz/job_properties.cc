#include "tests/fuzz/job_properties.h"

#include <string>

#include "absl/status/statusor.h"
#include "engine/api/job.h"
#include "kernels/check.h"

namespace shale {

void CheckPrintsAndParsesBack(const Job& job) {
  const std::string text = ResolvedJobText(job);
  const absl::StatusOr<Job> again = ParseJobText(text, "printed");
  SHALE_CHECK(again.ok()) << again.status() << "\n" << text;
  SHALE_CHECK(*again == job) << "printed:\n" << text << "parsed again:\n" << ResolvedJobText(*again);
}

}  // namespace shale
