// Fuzzes `--set` overrides of a small job. Each line of the input is one override.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "kernels/check.h"
#include "tests/fuzz/job_properties.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr char kBaseJob[] = R"(model { decoder { width: 64 layers: 4 heads: 4 } }
data { path: "/text" }
batch { global_batch: 8 sequence_length: 32 }
activation_checkpointing { recompute: "blocks.*.ffn.up" }
lr_schedule { steps: 10 }
)";

void CheckOverrides(absl::string_view lines) {
  const std::vector<std::string> overrides = absl::StrSplit(lines, '\n', absl::SkipEmpty());
  const absl::StatusOr<Job> job = ParseJobText(kBaseJob, "job.textproto", overrides);
  if (job.ok()) {
    CheckPrintsAndParsesBack(*job);
    return;
  }
  CheckRefusal(job.status());
  // The job without overrides is valid, so every error must name an override.
  SHALE_CHECK(absl::StrContains(job.status().message(), "--set")) << job.status();
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckOverrides({reinterpret_cast<const char*>(data), size});
  return 0;
}
