#include "engine/launch/token.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/io/file.h"
#include "engine/launch/secret_file.h"
#include "engine/text/quote.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::string> ReadToken(const Variables& variables) {
  constexpr int64_t kMostBytes = 4096;
  const auto file = variables.find("SHALE_TOKEN_FILE"), value = variables.find("SHALE_TOKEN");
  for (const auto& variable : {file, value}) {
    if (variable == variables.end() || !absl::StripAsciiWhitespace(variable->second).empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        variable->first, " is set and empty, so everybody could join the job; give a secret, or unset it"));
  }
  if (file == variables.end()) return value == variables.end() ? "" : value->second;
  if (value != variables.end()) {
    return absl::InvalidArgumentError("both SHALE_TOKEN_FILE and SHALE_TOKEN are set; unset one of them");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file->second, kMostBytes));
  SHALE_RETURN_IF_ERROR(CheckSecretFile(file->second, "the token"));
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(text).substr(0, text.find('\n')));
  if (line.empty()) return absl::InvalidArgumentError(absl::StrCat("no token in ", Quoted(file->second)));
  return std::string(line);
}

bool SameToken(absl::string_view a, absl::string_view b) {
  uint8_t difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<uint8_t>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace shale
