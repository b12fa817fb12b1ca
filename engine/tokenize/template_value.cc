#include "engine/tokenize/template_value.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status AppendJson(const TemplateValue& value, std::string* json) {
  if (json->size() > kMaxTextBytes) return absl::InvalidArgumentError("tojson writes too much");
  switch (value.kind) {
    case TemplateValue::Kind::kUndefined: return absl::InvalidArgumentError("tojson of an undefined value");
    case TemplateValue::Kind::kNone: absl::StrAppend(json, "null"); break;
    case TemplateValue::Kind::kBool: absl::StrAppend(json, value.number != 0 ? "true" : "false"); break;
    case TemplateValue::Kind::kInteger: absl::StrAppend(json, value.number); break;
    case TemplateValue::Kind::kString: absl::StrAppend(json, Json(value.text).dump()); break;
    case TemplateValue::Kind::kList: {
      absl::string_view before = "[";
      for (const TemplateValue& element : *value.list) {
        absl::StrAppend(json, std::exchange(before, ", "));
        SHALE_RETURN_IF_ERROR(AppendJson(element, json));
      }
      absl::StrAppend(json, value.list->empty() ? "[]" : "]");
      break;
    }
    case TemplateValue::Kind::kDict: {
      absl::string_view before = "{";
      for (const auto& [name, element] : *value.dict) {
        absl::StrAppend(json, std::exchange(before, ", "), Json(name).dump(), ": ");
        SHALE_RETURN_IF_ERROR(AppendJson(element, json));
      }
      absl::StrAppend(json, value.dict->empty() ? "{}" : "}");
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

TemplateValue TemplateValue::Of(List values) {
  TemplateValue all = {.kind = Kind::kList, .depth = 1};
  for (const TemplateValue& value : values) {
    all.depth = std::max(all.depth, value.depth + 1);
    all.has_namespace |= value.has_namespace;
  }
  all.list = std::make_shared<List>(std::move(values));
  return all;
}

TemplateValue TemplateValue::Of(Dict values) {
  TemplateValue all = {.kind = Kind::kDict, .depth = 1};
  for (const auto& [name, value] : values) {
    all.depth = std::max(all.depth, value.depth + 1);
    all.has_namespace |= value.has_namespace;
  }
  all.dict = std::make_shared<Dict>(std::move(values));
  return all;
}

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
    case Kind::kList: return list == other.list || *list == *other.list;
    case Kind::kDict:
      return dict == other.dict ||
             (dict->size() == other.dict->size() && std::all_of(dict->begin(), dict->end(), [&](const auto& item) {
                const TemplateValue* found = other.Find(item.first);
                return found != nullptr && *found == item.second;
              }));
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

absl::Status CheckTextLength(double bytes) {
  return bytes <= static_cast<double>(kMaxTextBytes) ? absl::OkStatus() : TemplateError("a string is too long");
}

absl::StatusOr<std::string> AsJson(const TemplateValue& value) {
  std::string json;
  SHALE_RETURN_IF_ERROR(AppendJson(value, &json));
  return json;
}

}  // namespace shale
