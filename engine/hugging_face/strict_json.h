// Parses untrusted JSON, without exceptions and within bounds.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// This type sorts members by name, as transformers writes them. The variant of nlohmann::json that keeps their order
// searches linearly, so that a hostile object would take quadratic time.
using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 16;
// The largest number of values, including objects and lists. A value may take only two bytes in the file, but takes up
// to about 200 in memory. An index has one value for each tensor: a mixture of experts of 670B parameters with one
// tensor per expert has 90,000.
constexpr int kMaxJsonValues = 1 << 20;

// Parses an object. Accepts any bytes. Returns InvalidArgument, with the byte position, for text that is not JSON, for
// half of a pair of surrogates, and for a number that is too large for a double. Also returns it for text that is not
// an object at the top, nests deeper than kMaxJsonDepth, has more than kMaxJsonValues values, or uses a name twice in
// one object (most parsers silently keep one of the two). Checks all of this before it builds anything.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text);

// Returns the errors of ParseStrictJson, and builds nothing.
absl::Status CheckStrictJson(absl::string_view text);

// Returns a value as text for a message, cut to a readable length.
std::string ShownJson(const Json& value);

}  // namespace shale
