// The text of the entries of data.mix and data.evaluation_sources.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/config/job.h"

namespace shale {

// Reads "250 code.jsonl": 250 of 1,000 samples are of code.jsonl. For a text of another form returns a share of 0, and
// all of the text as path.
MixedData MixedDataFromText(absl::string_view text);
std::string ToText(const MixedData& mixed);

// Reads "code test.jsonl": the source code is test.jsonl. For a text of another form returns no name, and all of the
// text as path.
EvaluationSource EvaluationSourceFromText(absl::string_view text);
std::string ToText(const EvaluationSource& source);

}  // namespace shale
