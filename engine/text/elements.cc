#include "engine/text/elements.h"

#include "absl/strings/str_cat.h"

namespace shale {

absl::Status CheckElements(absl::string_view what, int64_t elements, int64_t begin, int64_t count) {
  if (begin >= 0 && count <= elements && begin <= elements - count) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(what, " has ", elements, " elements; asked for ", count, " from number ", begin));
}

}  // namespace shale
