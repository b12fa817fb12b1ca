#include "engine/strings/messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/strings/utf8.h"

namespace shale {
namespace {

constexpr size_t kShownBytes = 60;
constexpr size_t kLongestName = 64;

// Returns how many edits make `b` of `a`: inserted, removed and replaced letters, and pairs of neighbors that change
// places, which is the most frequent slip of fingers. (This is the optimal string alignment distance.) Keeps three rows
// of the table in memory.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Returns the bytes of the character that `text` begins with, or nothing if it does not begin with one.
absl::string_view FirstCharacter(absl::string_view text) {
  const uint8_t byte = static_cast<uint8_t>(text[0]);
  const absl::string_view character = text.substr(0, byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4);
  return IsUtf8(character) ? character : absl::string_view();
}

// Returns whether a terminal takes a character as a command: C0, DEL, C1, and what sets the direction of text.
bool IsCommand(absl::string_view character) {
  const uint8_t first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  if (character.size() == 2) return first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0;
  static const auto& directions =
      *new std::vector<absl::string_view>{"\u061C", "\u200E", "\u200F", "\u2028", "\u2029", "\u202A", "\u202B",
                                          "\u202C", "\u202D", "\u202E", "\u2066", "\u2067", "\u2068", "\u2069"};
  return std::find(directions.begin(), directions.end(), character) != directions.end();
}

std::string WithoutCommands(absl::string_view text, absl::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const absl::string_view character = FirstCharacter(text);
    const absl::string_view taken = character.empty() ? text.substr(0, 1) : character;
    const bool plain = !character.empty() && (!IsCommand(character) || absl::StrContains(kept, character));
    absl::StrAppend(&out, plain ? std::string(taken) : absl::CEscape(taken));
    text.remove_prefix(taken.size());
  }
  return out;
}

}  // namespace

std::string Quoted(absl::string_view text) {
  size_t size = std::min(text.size(), kShownBytes);
  // Does not cut inside a character.
  while (size > 0 && size < text.size() && (static_cast<uint8_t>(text[size]) & 0xC0) == 0x80) --size;
  const absl::string_view shown = text.substr(0, size);
  const std::string escaped = IsUtf8(shown) ? absl::Utf8SafeCEscape(shown) : absl::CEscape(shown);
  return absl::StrCat("\"", escaped, size < text.size() ? "...\"" : "\"");
}

std::string Printable(absl::string_view text) { return WithoutCommands(text, "\n\t"); }
std::string PrintableLine(absl::string_view text) { return WithoutCommands(text, ""); }

std::string JsonQuote(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const absl::string_view character = FirstCharacter(text);
    if (character.empty()) {
      quoted += "\uFFFD";
      text.remove_prefix(1);
      continue;
    }
    const uint8_t byte = static_cast<uint8_t>(text[0]);
    if (byte == '"' || byte == '\\') {
      absl::StrAppend(&quoted, "\\", character);
    } else if (byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\u%04x", byte);
    } else {
      absl::StrAppend(&quoted, character);
    }
    text.remove_prefix(character.size());
  }
  return quoted + "\"";
}

std::string ShortJsonQuote(absl::string_view text, size_t bytes) {
  return absl::StrCat(JsonQuote(text.substr(0, bytes)), text.size() > bytes ? "..." : "");
}

std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kLongestName) return "";
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(absl::AsciiStrToLower(name), absl::AsciiStrToLower(candidate));
    const size_t bearable = std::max<size_t>(1, std::max(name.size(), candidate.size()) / 3);
    if (distance <= bearable && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

absl::Status CheckElements(absl::string_view what, int64_t elements, int64_t begin, int64_t count) {
  if (begin >= 0 && count <= elements && begin <= elements - count) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(what, " has ", elements, " elements; asked for ", count, " from number ", begin));
}

}  // namespace shale
