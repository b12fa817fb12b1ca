// Fuzzes the parser of machine profiles.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/time/profile.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void CheckMachineProfile(absl::string_view text) {
  absl::StatusOr<proto::MachineProfile> profile = ParseProfile(text, "m.textproto");
  if (!profile.ok()) return CheckRefusal(profile.status());
  const std::string printed = PrintProfile(*profile);
  const absl::StatusOr<proto::MachineProfile> again = ParseProfile(printed, "printed");
  SHALE_CHECK(again.ok()) << again.status() << "\n" << printed;
  SHALE_CHECK(PrintProfile(*again) == printed) << printed;
  // A profile holds all that was measured on its machine already.
  MergeProfile(*again, &*profile);
  SHALE_CHECK(PrintProfile(*profile) == printed) << printed;
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckMachineProfile({reinterpret_cast<const char*>(data), size});
  return 0;
}
