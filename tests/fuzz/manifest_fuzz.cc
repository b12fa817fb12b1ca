// Fuzzes the parser of a checkpoint's MANIFEST. Checksums would stop the fuzzer, so each input is tried twice: as it
// is, and as a message (the bytes after the frame's head) whose job checksum is corrected and that is framed anew.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"
#include "proto/checkpoint.pb.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr char kMagic[] = "SHALEMAN";
constexpr uint32_t kVersion = 1;

void CheckFile(absl::string_view bytes) {
  const absl::StatusOr<Manifest> manifest = ParseManifest(bytes);
  if (!manifest.ok()) return CheckRefusal(manifest.status());
  for (const SavedParameter& parameter : manifest->parameters) SHALE_CHECK(parameter.elements() > 0);
  for (const SavedFile& file : manifest->files) SHALE_CHECK(file.name.find('/') == std::string::npos) << file.name;
  const absl::StatusOr<Manifest> again = ParseManifest(SerializeManifest(*manifest));
  SHALE_CHECK(again.ok()) << again.status();
  SHALE_CHECK(*again == *manifest);
  // A flipped bit is noticed, wherever it is.
  std::string damaged(bytes);
  const size_t bit = Crc32c(bytes) % (bytes.size() * 8);
  damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
  SHALE_CHECK(!ParseManifest(damaged).ok()) << "bit " << bit;
}

void CheckManifestBytes(absl::string_view bytes) {
  CheckFile(bytes);
  std::string message(bytes.substr(bytes.size() < kFrameHeadBytes ? 0 : kFrameHeadBytes));
  if (proto::CheckpointManifest parsed; parsed.ParseFromString(message)) {
    parsed.set_job_crc32c(Crc32c(parsed.job()));
    message = parsed.SerializeAsString();
  }
  CheckFile(Frame(kMagic, kVersion, message));
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckManifestBytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
