// Splits text as the regular expressions of GPT-2, Llama 3 and Qwen 2 do, with hand-written code that is faster.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

// The expressions that have a scanner. Their matches leave no gaps: every character belongs to a match.
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
