// Parts of messages: quoted text that nobody trusts, the name that was meant, and which elements a caller asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns `text` in quotes, escaped as in C and textproto. Shows at most the first 60 bytes of `text`: "abc...". The
// result is UTF-8 even if `text` is not.
std::string Quoted(absl::string_view text);

// Returns untrusted text, such as the message of another process, in a form that changes nothing on a terminal but its
// lines: keeps printable characters, tabs and ends of lines, and escapes the rest as Quoted does, also the characters
// that reorder a line (U+202E and others).
std::string Printable(absl::string_view text);
// Does the same, and escapes tabs and ends of lines too.
std::string PrintableLine(absl::string_view text);

// Returns `text` as a JSON string, with quotes. Replaces each byte that is not UTF-8 by U+FFFD.
std::string JsonQuote(absl::string_view text);

// Does the same for messages, because a name in a JSON file may have megabytes. Shows at most the first `bytes` bytes
// of `text`, and "..." after the closing quote if there are more.
std::string ShortJsonQuote(absl::string_view text, size_t bytes = 80);

// Returns the candidate with the smallest edit distance from `name`, ignoring case. Returns "" if none is close.
std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates);

// Returns OutOfRange unless elements [begin, begin + count) exist: "parameter w has 6 elements; asked for 4 from number
// 3". `what` is the first part of the message. REQUIRES: count >= 0.
absl::Status CheckElements(absl::string_view what, int64_t elements, int64_t begin, int64_t count);

}  // namespace shale
