// Tells text from other bytes.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the offset of the first byte that cannot be part of clean text, npos if there is none. Clean text is
// well-formed UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF) without control characters other than
// tab and line ends.
size_t FindNonText(absl::string_view bytes);

// Returns whether `bytes` are clean text without tabs and line ends.
bool IsLineOfText(absl::string_view bytes);

}  // namespace shale
