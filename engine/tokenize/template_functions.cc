#include "engine/tokenize/template_functions.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/text/quote.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

// Returns whether Python's str.isspace holds, so that strip() removes the character.
bool IsPythonSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

// Strips characters of `set` from the chosen ends; without a set, white space.
std::string Strip(absl::string_view text, const Value* set, bool left, bool right) {
  const std::vector<absl::string_view> all = SplitCharacters(text);
  const auto strips = [&](absl::string_view character) {
    const char* at = character.data();
    return set == nullptr ? IsPythonSpace(NextCharacter(&at)) : absl::StrContains(set->text, character);
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end && strips(all[begin])) ++begin;
  while (right && begin < end && strips(all[end - 1])) --end;
  return absl::StrJoin(all.begin() + begin, all.begin() + end, "");
}

// Returns the text with the case of its ASCII letters changed. `change` is upper, lower, title or capitalize.
absl::StatusOr<Value> ChangeCase(absl::string_view change, absl::string_view text) {
  std::string changed(text);
  bool inside = false;
  for (char& c : changed) {
    if (static_cast<uint8_t>(c) >= 0x80) return TemplateError(change, " of letters beyond ASCII is not supported");
    const bool upper = change == "upper" || (!inside && change != "lower");
    c = upper ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    inside = change == "capitalize" || absl::ascii_isalpha(c);
  }
  return Value::Text(changed);
}

absl::StatusOr<Value> Split(absl::string_view text, const TemplateArguments& arguments) {
  if (arguments.values.size() != 1) {
    return TemplateError("split without a separator, or with a limit, is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string separator, arguments.Text(0, "sep", "split"));
  if (separator.empty()) return TemplateError("split: the separator is empty");
  Value::List parts;
  for (const absl::string_view part : absl::StrSplit(text, separator)) parts.push_back(Value::Text(part));
  return Value::Of(std::move(parts));
}

}  // namespace

const Value* TemplateArguments::Find(size_t index, absl::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<std::string> TemplateArguments::Text(size_t index, absl::string_view name, absl::string_view of) const {
  const Value* value = Find(index, name);
  if (value != nullptr && value->is(ValueKind::kString)) return value->text;
  return TemplateError(of, ": wanted a string as argument ", index + 1, "; found ",
                       value == nullptr ? "none" : value->type());
}

absl::StatusOr<Value> ApplyMethod(absl::string_view name, const Value& self, const TemplateArguments& arguments) {
  if (self.is(ValueKind::kUndefined)) return TemplateError(Quoted(self.text), " is undefined");
  if (self.is(ValueKind::kString)) {
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
      const Value* set = arguments.Find(0, "chars");
      if (set != nullptr && !set->is(ValueKind::kString)) return TemplateError(name, ": wanted a string");
      return Value::Text(Strip(self.text, set, name != "rstrip", name != "lstrip"));
    }
    if (name == "startswith" || name == "endswith") {
      SHALE_ASSIGN_OR_RETURN(const std::string part, arguments.Text(0, "prefix", name));
      return Value::Bool(name == "endswith" ? absl::EndsWith(self.text, part) : absl::StartsWith(self.text, part));
    }
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
      return ChangeCase(name, self.text);
    }
    if (name == "split") return Split(self.text, arguments);
    if (name == "replace" && arguments.values.size() == 2) {
      SHALE_ASSIGN_OR_RETURN(const std::string from, arguments.Text(0, "old", name));
      SHALE_ASSIGN_OR_RETURN(const std::string to, arguments.Text(1, "new", name));
      if (from.empty()) return TemplateError("replace of an empty string is not supported");
      const double most = static_cast<double>(self.text.size()) / static_cast<double>(from.size());
      SHALE_RETURN_IF_ERROR(
          CheckTextLength(static_cast<double>(self.text.size()) + most * static_cast<double>(to.size())));
      return Value::Text(absl::StrReplaceAll(self.text, {{from, to}}));
    }
  }
  if (self.is(ValueKind::kDict)) {
    if (name == "get" && !arguments.values.empty() && arguments.values[0].is(ValueKind::kString)) {
      const Value* found = self.Find(arguments.values[0].text);
      if (found != nullptr) return *found;
      return arguments.values.size() > 1 ? arguments.values[1] : Value::None();
    }
    if (name == "items" || name == "keys" || name == "values") {
      Value::List all;
      for (const auto& [key, value] : *self.dict) {
        all.push_back(name == "items"  ? Value::Of(Value::List{Value::Text(key), value})
                      : name == "keys" ? Value::Text(key)
                                       : value);
      }
      return Value::Of(std::move(all));
    }
  }
  return TemplateError("the method ", Quoted(name), " of ", self.type(), " is not supported");
}

absl::StatusOr<Value> ApplyFunction(absl::string_view name, const TemplateArguments& arguments) {
  if (name == "raise_exception") {
    SHALE_ASSIGN_OR_RETURN(const std::string message, arguments.Text(0, "message", name));
    return TemplateError("the template refuses the conversation: ", Quoted(message));
  }
  if (name == "namespace" && arguments.values.empty()) {
    Value space = Value::Of(Value::Dict(arguments.keywords.begin(), arguments.keywords.end()));
    if (space.depth > kMaxNesting) return TemplateError("values are nested too deeply");
    space.number = 1;  // Its attributes can be set.
    space.has_namespace = true;
    return space;
  }
  if (name == "range" && arguments.keywords.empty() && !arguments.values.empty() && arguments.values.size() <= 3) {
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < arguments.values.size(); ++i) {
      if (!arguments.values[i].is_number()) return TemplateError("range: wanted integers");
      bounds[arguments.values.size() == 1 ? 1 : i] = arguments.values[i].number;
    }
    if (bounds[2] == 0) return TemplateError("range: the step is 0");
    Value::List all;
    bool ends = false;  // Whether the next number would be too large for int64_t.
    for (int64_t i = bounds[0]; !ends && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]);
         ends = __builtin_add_overflow(i, bounds[2], &i)) {
      if (std::ssize(all) >= kMaxElements) return TemplateError("range: more than ", kMaxElements, " numbers");
      all.push_back(Value::Integer(i));
    }
    return Value::Of(std::move(all));
  }
  return TemplateError("the function ", Quoted(name), " is not supported");
}

}  // namespace shale
