#include "engine/config/names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/config/other_words.h"
#include "engine/text/quote.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

std::string WithSuggestion(std::string message, const std::string& suggestion) {
  if (!suggestion.empty()) absl::StrAppend(&message, "; did you mean ", suggestion, "?");
  return message;
}

// Returns the path under `type` of a field called `name`, or "" if there is none. The recursion ends because no message
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

std::string EnumMessage(const EnumDescriptor& type, absl::string_view found) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) allowed.push_back(type.value(i)->name());
  }
  const std::string ours = OurValue(found);
  const std::string value = ours.substr(0, ours.find(' '));
  const bool known = std::find(allowed.begin(), allowed.end(), value) != allowed.end();
  return WithSuggestion(absl::StrCat("found ", Quoted(found), "; allowed: ", absl::StrJoin(allowed, ", ")),
                        known ? ours : Nearest(found, allowed));
}

std::string UnknownFieldMessage(const Descriptor& root, const Descriptor& type, absl::string_view name) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.field_count(); ++i) allowed.push_back(type.field(i)->name());
  std::string suggestion = OurField(name);
  if (suggestion.empty()) suggestion = Nearest(name, allowed);
  if (suggestion.empty()) suggestion = FindElsewhere(root, std::string(name));
  return WithSuggestion(absl::StrCat("no such field; allowed: ", absl::StrJoin(allowed, ", ")), suggestion);
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor& type, const std::string& name) {
  const EnumValueDescriptor* value = type.FindValueByName(name);
  return value == nullptr || value->number() == 0 ? nullptr : value;
}

}  // namespace shale
