#include "engine/text/tokenizer/part.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "engine/text/tokenizer/regex.h"
#include "kernels/check.h"

namespace shale {
namespace {

const Json& Null() {
  static const Json& null = *new Json;
  return null;
}

}  // namespace

absl::Status JsonPart::Check(std::initializer_list<absl::string_view> names) const {
  if (!json_->is_object()) return Error(absl::StrCat("found ", ShownJson(*json_), "; wanted an object"));
  for (const auto& [name, value] : json_->items()) {
    if (name != "type" && std::find(names.begin(), names.end(), name) == names.end()) {
      return Error(absl::StrCat(ShownJson(name), " is not known; known: ", absl::StrJoin(names, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonPart::Type() const {
  if (!json_->is_object()) return Error(absl::StrCat("found ", ShownJson(*json_), "; wanted an object"));
  return Text("type");
}

JsonPart JsonPart::Member(const std::string& name) const {
  const auto found = json_->find(name);
  return JsonPart(found == json_->end() ? &Null() : &*found, absl::StrCat(path_, ".", name));
}

absl::StatusOr<std::vector<JsonPart>> JsonPart::Elements() const {
  if (!json_->is_array()) return Error(absl::StrCat("found ", ShownJson(*json_), "; wanted a list"));
  std::vector<JsonPart> elements;
  for (size_t i = 0; i < json_->size(); ++i) elements.emplace_back(&(*json_)[i], absl::StrCat(path_, "[", i, "]"));
  return elements;
}

absl::StatusOr<std::string> JsonPart::Text(const std::string& name) const {
  const JsonPart member = Member(name);
  if (!member.json().is_string()) {
    return member.Error(absl::StrCat("found ", ShownJson(member.json()), "; wanted a string"));
  }
  return member.json().get<std::string>();
}

absl::StatusOr<int64_t> JsonPart::Integer(const std::string& name) const {
  const JsonPart member = Member(name);
  if (!member.json().is_number_unsigned() || member.json().get<uint64_t>() >= uint64_t{1} << 31) {
    return member.Error(absl::StrCat("found ", ShownJson(member.json()), "; wanted an integer, 0 to 2^31 - 1"));
  }
  return member.json().get<int64_t>();
}

absl::StatusOr<bool> JsonPart::Flag(const std::string& name, bool missing) const {
  const JsonPart member = Member(name);
  if (member.is_null()) return missing;
  if (!member.json().is_boolean()) {
    return member.Error(absl::StrCat("found ", ShownJson(member.json()), "; wanted true or false"));
  }
  return member.json().get<bool>();
}

absl::StatusOr<Regex> JsonPart::Pattern(const std::string& name, std::string* regex_text) const {
  const JsonPart member = Member(name);
  SHALE_RETURN_IF_ERROR(member.Check({"String", "Regex"}));
  if (member.json().size() != 1) return member.Error(R"(wanted either "String" or "Regex")");
  const bool literal = member.json().contains("String");
  SHALE_ASSIGN_OR_RETURN(const std::string text, member.Text(literal ? "String" : "Regex"));
  if (regex_text != nullptr) *regex_text = literal ? "" : text;
  absl::StatusOr<Regex> regex = literal ? Regex::Literal(text) : Regex::Compile(text);
  if (!regex.ok()) return member.Error(regex.status().message());
  return regex;
}

absl::Status Flatten(const JsonPart& part, const std::string& name, std::vector<JsonPart>* parts) {
  if (part.is_null()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::string type, part.Type());
  if (type != "Sequence") {
    if (parts->size() == kMaxSteps)
      return part.Error(absl::StrCat("more than ", kMaxSteps, " steps are not supported"));
    parts->push_back(part);
    return absl::OkStatus();
  }
  SHALE_RETURN_IF_ERROR(part.Check({name}));
  SHALE_ASSIGN_OR_RETURN(const std::vector<JsonPart> elements, part.Member(name).Elements());
  for (const JsonPart& element : elements) SHALE_RETURN_IF_ERROR(Flatten(element, name, parts));
  return absl::OkStatus();
}

}  // namespace shale
