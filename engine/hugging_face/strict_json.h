// JSON files of strangers: parsed without exceptions, within bounds.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Members sorted by name, as transformers writes them. Not the variant that keeps their order: it searches line by
// line, and a hostile object would take time squared.
using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 16;
// Values, objects and lists included. Each may take two bytes in the file, and takes up to some 200 in memory. An index
// has one for each tensor: a mixture of experts of 670B parameters with a tensor per expert has 90,000.
constexpr int kMaxJsonValues = 1 << 20;

// Any bytes are fine as input. InvalidArgument, with the byte, for what is no JSON, is no object at the top, nests
// deeper than kMaxJsonDepth, has more than kMaxJsonValues, or gives one name twice in one object (most parsers silently
// keep one of the two). The bounds are checked before anything is built.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text);

// A value as messages show it, cut to a readable length.
std::string ShownJson(const Json& value);

}  // namespace shale
