// Splits text like the regular expressions of the families, without a regular expression.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

// The expressions that have a scanner. Each matches everything, so that pieces follow each other without gaps.
inline constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

// Returns the end of the piece that begins at `begin`. REQUIRES: begin < end, and [begin, end) is well-formed UTF-8.
using Scanner = const char* (*)(const char* begin, const char* end);

// Returns the scanner of a pattern, or null if there is none.
Scanner FindScanner(absl::string_view pattern);

}  // namespace shale
