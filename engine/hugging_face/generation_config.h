// Completes a generation_config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns the text of a generation_config.json whose `eos_token_id` has `end_tokens`, behind those that it had. `text`
// is the file as it is, or null if there is none: transformers then takes the members from config.json, and so does
// this. Returns null if nothing is missing. Returns InvalidArgument for a file that cannot be understood.
absl::StatusOr<std::optional<std::string>> CompletedGenerationConfig(const std::optional<std::string>& text,
                                                                     absl::string_view config,
                                                                     const std::vector<int32_t>& end_tokens);

}  // namespace shale
