// Fuzzes the parser of config.json of a Hugging Face folder.
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/config.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

// Checks that `config`, written as config.json, reads back unchanged. With options.base it is written on top of the
// config.json that it came from.
void CheckWrites(const DecoderConfig& config, const HfConfigOptions& options) {
  const absl::StatusOr<std::string> text = HfConfigText(config, options);
  if (!text.ok()) return CheckRefusal(text.status());
  const absl::StatusOr<DecoderConfig> again = ParseHfConfig(*text, "written");
  SHALE_CHECK(again.ok()) << again.status() << "\n" << *text;
  SHALE_CHECK(*again == config) << *text;
}

void CheckHfConfig(absl::string_view text) {
  const absl::StatusOr<DecoderConfig> config = ParseHfConfig(text, "config.json");
  if (!config.ok()) return CheckRefusal(config.status());
  SHALE_CHECK(config->heads % config->kv_heads == 0 && config->head_width % 2 == 0);
  CheckWrites(*config, {SafetensorsDType::kBF16, std::nullopt});
  CheckWrites(*config, {SafetensorsDType::kF32, std::string(text)});
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckHfConfig({reinterpret_cast<const char*>(data), size});
  return 0;
}
