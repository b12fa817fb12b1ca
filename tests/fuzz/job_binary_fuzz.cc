// Fuzzes the parser of binary job specs.
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

void CheckJobBinary(absl::string_view bytes) {
  const absl::StatusOr<Job> job = ParseJobBinary(bytes, "job.binpb");
  if (!job.ok()) return CheckRefusal(job.status());
  CheckPrintsAndParsesBack(*job);
  // The same spec as text parses to the same job.
  proto::Job spec;
  SHALE_CHECK(spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  std::string printed;
  SHALE_CHECK(google::protobuf::TextFormat::PrintToString(spec, &printed));
  const absl::StatusOr<Job> text = ParseJobText(printed, "job.binpb");
  SHALE_CHECK(text.ok()) << text.status() << "\n" << printed;
  SHALE_CHECK(*text == *job) << printed;
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckJobBinary({reinterpret_cast<const char*>(data), size});
  return 0;
}
