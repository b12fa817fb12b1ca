// Fuzzes the parser of model.safetensors.index.json of a Hugging Face folder.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

std::string Text(const SafetensorsIndex& index) {
  std::string text = "{\"metadata\": {}, \"weight_map\": {";
  for (const auto& [tensor, file] : index.files) {
    absl::StrAppend(&text, absl::EndsWith(text, "{") ? "" : ", ", JsonQuote(tensor), ": ", JsonQuote(file));
  }
  return text + "}}";
}

void CheckSafetensorsIndex(absl::string_view text) {
  const absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(text);
  if (!index.ok()) return CheckRefusal(index.status());
  for (const auto& [tensor, file] : index->files) {
    // Joined to the folder's path, the name cannot lead out of the folder.
    SHALE_CHECK(absl::EndsWith(file, ".safetensors") && file[0] != '.') << file;
    SHALE_CHECK(file.find('/') == std::string::npos && file.find('\0') == std::string::npos) << file;
  }
  const absl::StatusOr<SafetensorsIndex> again = ParseSafetensorsIndex(Text(*index));
  SHALE_CHECK(again.ok()) << again.status() << "\n" << Text(*index);
  SHALE_CHECK(again->files == index->files) << Text(*index);
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckSafetensorsIndex({reinterpret_cast<const char*>(data), size});
  return 0;
}
