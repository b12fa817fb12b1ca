// Explains the fields of a job to people, from proto/job.proto: for --help of the tools, and for the manual.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns the explanation of what is at the path `topic`, in lines of at most `columns` columns: of a section such as
// "batch", its fields with values, default and the first sentence of each; of a field such as "sharding.strategy",
// all that there is to say; of "job", the sections. Returns InvalidArgument with a suggestion if a job has no such
// field. Any thread may call it.
absl::StatusOr<std::string> FieldHelp(absl::string_view topic, size_t columns = 100);

// Returns tools/manual/fields.md, a page in Markdown with all fields.
std::string FieldsPage();

}  // namespace shale
