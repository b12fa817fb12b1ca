#include "engine/config/names.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/config/old_words.h"
#include "engine/io/utf8.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

constexpr size_t kShownBytes = 60;
constexpr size_t kLongestName = 64;

// Levenshtein distance, one row at a time.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string WithSuggestion(std::string message, const std::string& suggestion) {
  if (!suggestion.empty()) absl::StrAppend(&message, "; did you mean ", suggestion, "?");
  return message;
}

// Returns the path under `type` of a field called `name`; empty if there is none. The recursion ends because no message
// of a job spec contains itself.
std::string FindElsewhere(const Descriptor& type, const std::string& name) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.name() == name) return name;
    if (field.message_type() == nullptr) continue;
    const std::string inside = FindElsewhere(*field.message_type(), name);
    if (!inside.empty()) return absl::StrCat(field.name(), ".", inside);
  }
  return "";
}

}  // namespace

std::string Quoted(absl::string_view found) {
  size_t size = std::min(found.size(), kShownBytes);
  // Cuts between characters, not inside one.
  while (size > 0 && size < found.size() && (static_cast<uint8_t>(found[size]) & 0xC0) == 0x80) --size;
  const absl::string_view shown = found.substr(0, size);
  const std::string escaped = IsUtf8(shown) ? absl::Utf8SafeCEscape(shown) : absl::CEscape(shown);
  return absl::StrCat("\"", escaped, size < found.size() ? "...\"" : "\"");
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

std::string EnumMessage(const EnumDescriptor& type, absl::string_view found) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) allowed.push_back(type.value(i)->name());
  }
  const std::string today = TodaysValue(found);
  const bool known = std::find(allowed.begin(), allowed.end(), today) != allowed.end();
  return WithSuggestion(absl::StrCat("found ", Quoted(found), "; allowed: ", absl::StrJoin(allowed, ", ")),
                        known ? today : Nearest(found, allowed));
}

std::string UnknownFieldMessage(const Descriptor& root, const Descriptor& type, absl::string_view name) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.field_count(); ++i) allowed.push_back(type.field(i)->name());
  std::string suggestion = TodaysField(name);
  if (suggestion.empty()) suggestion = Nearest(name, allowed);
  if (suggestion.empty()) suggestion = FindElsewhere(root, std::string(name));
  return WithSuggestion(absl::StrCat("no such field; allowed: ", absl::StrJoin(allowed, ", ")), suggestion);
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor& type, const std::string& name) {
  const EnumValueDescriptor* value = type.FindValueByName(name);
  return value == nullptr || value->number() == 0 ? nullptr : value;
}

}  // namespace shale
