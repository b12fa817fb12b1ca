// Fuzzes the parser of job specs in text.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "google/protobuf/text_format.h"
#include "kernels/check.h"
#include "proto/job.pb.h"
#include "tests/fuzz/job_properties.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void CheckJobText(absl::string_view text) {
  const absl::StatusOr<Job> job = ParseJobText(text, "job.textproto");
  if (!job.ok()) return CheckRefusal(job.status());
  CheckPrintsAndParsesBack(*job);
  // The same spec in binary parses to the same job.
  proto::Job spec;
  SHALE_CHECK(google::protobuf::TextFormat::ParseFromString(std::string(text), &spec));
  const absl::StatusOr<Job> binary = ParseJobBinary(spec.SerializeAsString(), "job.textproto");
  SHALE_CHECK(binary.ok()) << binary.status();
  SHALE_CHECK(*binary == *job);
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckJobText({reinterpret_cast<const char*>(data), size});
  return 0;
}
