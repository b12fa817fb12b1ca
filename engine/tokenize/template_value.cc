#include "engine/tokenize/template_value.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "kernels/check.h"

namespace shale {

const char* TemplateValue::type() const {
  switch (kind) {
    case Kind::kUndefined: return "undefined";
    case Kind::kNone: return "none";
    case Kind::kBool: return "a boolean";
    case Kind::kInteger: return "an integer";
    case Kind::kString: return "a string";
    case Kind::kList: return "a list";
    case Kind::kDict: return "a mapping";
  }
  return "";
}

bool TemplateValue::truth() const {
  switch (kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInteger: return number != 0;
    case Kind::kString: return !text.empty();
    case Kind::kList: return !list->empty();
    case Kind::kDict: return !dict->empty();
  }
  return false;
}

bool TemplateValue::operator==(const TemplateValue& other) const {
  if (is_number() && other.is_number()) return number == other.number;
  if (kind != other.kind) return false;
  switch (kind) {
    case Kind::kString: return text == other.text;
    case Kind::kList: return *list == *other.list;
    case Kind::kDict:
      return dict->size() == other.dict->size() && std::all_of(dict->begin(), dict->end(), [&](const auto& item) {
               const TemplateValue* found = other.Find(item.first);
               return found != nullptr && *found == item.second;
             });
    default: return true;
  }
}

const TemplateValue* TemplateValue::Find(absl::string_view name) const {
  if (kind != Kind::kDict) return nullptr;
  const auto found = std::find_if(dict->begin(), dict->end(), [&](const auto& item) { return item.first == name; });
  return found == dict->end() ? nullptr : &found->second;
}

absl::StatusOr<std::string> Printed(const TemplateValue& value) {
  switch (value.kind) {
    case TemplateValue::Kind::kUndefined: return std::string();
    case TemplateValue::Kind::kNone: return std::string("None");
    case TemplateValue::Kind::kBool: return std::string(value.number != 0 ? "True" : "False");
    case TemplateValue::Kind::kInteger: return absl::StrCat(value.number);
    case TemplateValue::Kind::kString: return value.text;
    default: return absl::InvalidArgumentError(absl::StrCat("to write ", value.type(), " as text is not supported"));
  }
}

absl::StatusOr<std::string> AsJson(const TemplateValue& value) {
  switch (value.kind) {
    case TemplateValue::Kind::kUndefined: return absl::InvalidArgumentError("tojson of an undefined value");
    case TemplateValue::Kind::kNone: return std::string("null");
    case TemplateValue::Kind::kBool: return std::string(value.number != 0 ? "true" : "false");
    case TemplateValue::Kind::kInteger: return absl::StrCat(value.number);
    case TemplateValue::Kind::kString: return Json(value.text).dump();
    case TemplateValue::Kind::kList: {
      std::string all = "[";
      for (const TemplateValue& element : *value.list) {
        SHALE_ASSIGN_OR_RETURN(const std::string one, AsJson(element));
        absl::StrAppend(&all, all.size() > 1 ? ", " : "", one);
      }
      return all + "]";
    }
    case TemplateValue::Kind::kDict: {
      std::string all = "{";
      for (const auto& [name, element] : *value.dict) {
        SHALE_ASSIGN_OR_RETURN(const std::string one, AsJson(element));
        absl::StrAppend(&all, all.size() > 1 ? ", " : "", Json(name).dump(), ": ", one);
      }
      return all + "}";
    }
  }
  return std::string();
}

}  // namespace shale
