// JSON files of strangers: parsed without exceptions, within bounds.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Members keep the order of the text, so that a file that is read, changed and written looks as it did.
using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 16;

// Any bytes are fine as input. InvalidArgument, with the byte, for what is no JSON, is no object at the top, nests deeper
// than kMaxJsonDepth, or gives one name twice in one object (most parsers silently keep one of the two). The bounds are
// checked before anything is built, so that hostile text costs no more memory than it has bytes.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text);

// A value as messages show it, cut to a readable length.
std::string ShownJson(const Json& value);

}  // namespace shale
