// The date that chat templates write with strftime_now.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns midnight of a day, "2026-11-28", as Python's strftime writes it in the locale C. Returns InvalidArgument if
// `date` is empty or no day, and for directives that depend on a place or on a system.
absl::StatusOr<std::string> FormatTemplateDate(const std::string& date, absl::string_view format);

}  // namespace shale
