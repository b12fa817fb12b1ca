#include "engine/plan/config/data_errors.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shale {

absl::Status InField(const std::vector<NamedPath>& named, const absl::Status& status) {
  if (status.ok() || absl::StartsWith(status.message(), "data.")) return status;
  absl::string_view field = named.front().field;
  size_t longest = 0;
  for (const NamedPath& one : named) {
    if (one.path.size() <= longest || !absl::StrContains(status.message(), one.path)) continue;
    field = one.field;
    longest = one.path.size();
  }
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

absl::Status CheckTokenizerExists(const DataConfig& data) {
  std::error_code error;
  if (!data.has_tokenizer() || std::filesystem::exists(data.tokenizer, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.tokenizer: ", data.tokenizer,
                   " does not exist; give a folder with tokenizer.json (tokenize --train makes "
                   "one), or \"bytes\""));
}

}  // namespace shale
