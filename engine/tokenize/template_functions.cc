#include "engine/tokenize/template_functions.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/text/quote.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using Kind = TemplateValue::Kind;

constexpr int64_t kMostElements = 1 << 20;  // Of a list that a function makes.

template <class... Args>
absl::Status Error(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

// Returns an error if a string of so many bytes is too long.
absl::Status CheckLength(double bytes) {
  return bytes <= static_cast<double>(kMostTextBytes) ? absl::OkStatus() : Error("a string is too long");
}

// Returns whether Python's str.isspace holds, so that strip() removes the character.
bool IsPythonSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

std::vector<absl::string_view> Characters(absl::string_view text) {
  std::vector<absl::string_view> all;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const char* begin = at;
    NextCharacter(&at);
    all.emplace_back(begin, at - begin);
  }
  return all;
}

// Strips characters of `set` from the chosen ends; without a set, white space.
std::string Strip(absl::string_view text, const Value* set, bool left, bool right) {
  const std::vector<absl::string_view> all = Characters(text);
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
    if (static_cast<uint8_t>(c) >= 0x80) return Error(change, " of letters beyond ASCII is not supported");
    const bool upper = change == "upper" || (!inside && change != "lower");
    c = upper ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    inside = change == "capitalize" || absl::ascii_isalpha(c);
  }
  return Value::Text(changed);
}

// Returns argument `index`, or the keyword `name`, or null.
const Value* Argument(const TemplateArguments& arguments, size_t index, absl::string_view name) {
  if (index < arguments.values.size()) return &arguments.values[index];
  for (const auto& [keyword, value] : arguments.keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<std::string> TextArgument(const TemplateArguments& arguments, size_t index, absl::string_view name,
                                         absl::string_view of) {
  const Value* value = Argument(arguments, index, name);
  if (value != nullptr && value->is(Kind::kString)) return value->text;
  return Error(of, ": wanted a string as argument ", index + 1, "; found ", value == nullptr ? "none" : value->type());
}

absl::StatusOr<int64_t> Arithmetic(absl::string_view sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (sign == "//" || sign == "%") {
    if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return Error("a division by ", b);
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    result = sign == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  if (overflow) return Error("an integer is too large");
  return result;
}

absl::StatusOr<bool> Contains(const Value& all, const Value& one) {
  if (all.is(Kind::kString) && one.is(Kind::kString)) return absl::StrContains(all.text, one.text);
  if (all.is(Kind::kString)) return Error("in: found ", one.type(), "; wanted a string");
  if (all.is(Kind::kUndefined)) return false;
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(all));
  return std::find(elements.begin(), elements.end(), one) != elements.end();
}

// Returns the elements whose attribute passes a test (selectattr), or does not (rejectattr).
absl::StatusOr<Value> SelectAttribute(absl::string_view filter, const Value& value,
                                      const TemplateArguments& arguments) {
  SHALE_ASSIGN_OR_RETURN(const std::string attribute, TextArgument(arguments, 0, "attribute", filter));
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
  Value::List selected;
  for (const Value& element : elements) {
    SHALE_ASSIGN_OR_RETURN(const Value found, ItemOf(element, Value::Text(attribute)));
    bool passes = found.truth();
    if (arguments.values.size() > 1) {
      SHALE_ASSIGN_OR_RETURN(const std::string test, TextArgument(arguments, 1, "test", filter));
      TemplateArguments rest;
      rest.values.assign(arguments.values.begin() + 2, arguments.values.end());
      SHALE_ASSIGN_OR_RETURN(passes, ApplyTest(test, found, rest));
    }
    if (passes == (filter == "selectattr")) selected.push_back(element);
  }
  return Value::Of(std::move(selected));
}

absl::StatusOr<Value> Split(absl::string_view text, const TemplateArguments& arguments) {
  if (arguments.values.size() != 1) return Error("split without a separator, or with a limit, is not supported");
  SHALE_ASSIGN_OR_RETURN(const std::string separator, TextArgument(arguments, 0, "sep", "split"));
  if (separator.empty()) return Error("split: an empty separator");
  Value::List parts;
  for (const absl::string_view part : absl::StrSplit(text, separator)) parts.push_back(Value::Text(part));
  return Value::Of(std::move(parts));
}

}  // namespace

absl::StatusOr<Value> ApplyBinary(absl::string_view sign, const Value& a, const Value& b) {
  if (sign == "==") return Value::Bool(a == b);
  if (sign == "!=") return Value::Bool(!(a == b));
  if (sign == "in") {
    SHALE_ASSIGN_OR_RETURN(const bool found, Contains(b, a));
    return Value::Bool(found);
  }
  if (sign == "~") {
    SHALE_ASSIGN_OR_RETURN(const std::string left, Printed(a));
    SHALE_ASSIGN_OR_RETURN(const std::string right, Printed(b));
    SHALE_RETURN_IF_ERROR(CheckLength(static_cast<double>(left.size() + right.size())));
    return Value::Text(absl::StrCat(left, right));
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::kUndefined)) return Error(Quoted(value->text), " is undefined");
  }
  const bool texts = a.is(Kind::kString) && b.is(Kind::kString), numbers = a.is_number() && b.is_number();
  if (texts || numbers) {
    const int order = numbers ? (a.number > b.number) - (a.number < b.number) : a.text.compare(b.text);
    if (sign == "<") return Value::Bool(order < 0);
    if (sign == "<=") return Value::Bool(order <= 0);
    if (sign == ">") return Value::Bool(order > 0);
    if (sign == ">=") return Value::Bool(order >= 0);
  }
  if (texts && sign == "+") return ApplyBinary("~", a, b);
  if (numbers) {
    SHALE_ASSIGN_OR_RETURN(const int64_t result, Arithmetic(sign, a.number, b.number));
    return Value::Integer(result);
  }
  if (sign == "+" && a.is(Kind::kList) && b.is(Kind::kList)) {
    Value::List both = *a.list;
    both.insert(both.end(), b.list->begin(), b.list->end());
    if (std::ssize(both) > kMostElements) return Error("a list is too long");
    return Value::Of(std::move(both));
  }
  return Error(sign, " of ", a.type(), " and ", b.type(), " is not supported");
}

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const TemplateArguments& arguments) {
  if (name == "default" || name == "d") {
    const Value* other = Argument(arguments, 0, "default_value");
    const Value* empty = Argument(arguments, 1, "boolean");
    const bool replaces = value.is(Kind::kUndefined) || (empty != nullptr && empty->truth() && !value.truth());
    return !replaces ? value : other == nullptr ? Value::Text("") : *other;
  }
  if (name == "tojson") {
    if (Argument(arguments, 0, "indent") != nullptr) return Error("tojson with arguments is not supported");
    SHALE_ASSIGN_OR_RETURN(const std::string json, AsJson(value));
    return Value::Text(json);
  }
  if (name == "string" || name == "safe") {
    SHALE_ASSIGN_OR_RETURN(const std::string text, Printed(value));
    return Value::Text(text);
  }
  if (name == "trim" || name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
    SHALE_ASSIGN_OR_RETURN(const std::string text, Printed(value));
    return ApplyMethod(name == "trim" ? "strip" : name, Value::Text(text), arguments);
  }
  if (name == "replace") {
    SHALE_ASSIGN_OR_RETURN(const std::string text, Printed(value));
    return ApplyMethod("replace", Value::Text(text), arguments);
  }
  if (name == "selectattr" || name == "rejectattr") return SelectAttribute(name, value, arguments);
  if (name == "items") return ApplyMethod("items", value, arguments);
  if (name != "length" && name != "count" && name != "list" && name != "first" && name != "last" && name != "join" &&
      name != "map" && name != "reverse") {
    return Error("the filter ", Quoted(name), " is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(Value::List elements, ElementsOf(value));
  if (name == "length" || name == "count") return Value::Integer(std::ssize(elements));
  if (name == "list") return Value::Of(std::move(elements));
  if (name == "first") return elements.empty() ? Value::Undefined("first of nothing") : elements.front();
  if (name == "last") return elements.empty() ? Value::Undefined("last of nothing") : elements.back();
  if (name == "reverse") {
    if (value.is(Kind::kString)) return Error("reverse of a string is not supported");
    std::reverse(elements.begin(), elements.end());
    return Value::Of(std::move(elements));
  }
  if (name == "map") {
    if (!arguments.values.empty() || arguments.keywords.size() != 1 || arguments.keywords[0].first != "attribute") {
      return Error("map without attribute= is not supported");
    }
    for (Value& element : elements) {
      SHALE_ASSIGN_OR_RETURN(element, ItemOf(element, arguments.keywords[0].second));
    }
    return Value::Of(std::move(elements));
  }
  const Value* separator = Argument(arguments, 0, "d");
  const std::string between = separator == nullptr ? "" : separator->text;
  std::string joined;
  for (size_t i = 0; i < elements.size(); ++i) {
    SHALE_ASSIGN_OR_RETURN(const std::string text, Printed(elements[i]));
    absl::StrAppend(&joined, i > 0 ? between : "", text);
    SHALE_RETURN_IF_ERROR(CheckLength(static_cast<double>(joined.size())));
  }
  return Value::Text(joined);
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const TemplateArguments& arguments) {
  if (name == "defined") return !value.is(Kind::kUndefined);
  if (name == "undefined") return value.is(Kind::kUndefined);
  if (name == "none") return value.is(Kind::kNone);
  if (name == "string") return value.is(Kind::kString);
  if (name == "mapping") return value.is(Kind::kDict);
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is(Kind::kInteger);
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.number != 0;
  if (name == "false") return value.is(Kind::kBool) && value.number == 0;
  const bool walks = value.is(Kind::kString) || value.is(Kind::kList) || value.is(Kind::kDict);
  if (name == "iterable") return walks || value.is(Kind::kUndefined);
  if (name == "sequence") return walks || value.is(Kind::kUndefined);
  if ((name == "equalto" || name == "eq" || name == "ne" || name == "in") && arguments.values.size() == 1) {
    if (name == "in") return Contains(arguments.values[0], value);
    return (value == arguments.values[0]) == (name != "ne");
  }
  return Error("the test ", Quoted(name), " is not supported");
}

absl::StatusOr<Value> ApplyMethod(absl::string_view name, const Value& self, const TemplateArguments& arguments) {
  if (self.is(Kind::kUndefined)) return Error(Quoted(self.text), " is undefined");
  if (self.is(Kind::kString)) {
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
      const Value* set = Argument(arguments, 0, "chars");
      if (set != nullptr && !set->is(Kind::kString)) return Error(name, ": wanted a string");
      return Value::Text(Strip(self.text, set, name != "rstrip", name != "lstrip"));
    }
    if (name == "startswith" || name == "endswith") {
      SHALE_ASSIGN_OR_RETURN(const std::string part, TextArgument(arguments, 0, "prefix", name));
      return Value::Bool(name == "endswith" ? absl::EndsWith(self.text, part) : absl::StartsWith(self.text, part));
    }
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
      return ChangeCase(name, self.text);
    }
    if (name == "split") return Split(self.text, arguments);
    if (name == "replace" && arguments.values.size() == 2) {
      SHALE_ASSIGN_OR_RETURN(const std::string from, TextArgument(arguments, 0, "old", name));
      SHALE_ASSIGN_OR_RETURN(const std::string to, TextArgument(arguments, 1, "new", name));
      if (from.empty()) return Error("replace of an empty string is not supported");
      const double most = static_cast<double>(self.text.size()) / static_cast<double>(from.size());
      SHALE_RETURN_IF_ERROR(CheckLength(static_cast<double>(self.text.size()) + most * static_cast<double>(to.size())));
      return Value::Text(absl::StrReplaceAll(self.text, {{from, to}}));
    }
  }
  if (self.is(Kind::kDict)) {
    if (name == "get" && !arguments.values.empty() && arguments.values[0].is(Kind::kString)) {
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
  return Error("the method ", Quoted(name), " of ", self.type(), " is not supported");
}

absl::StatusOr<Value> ApplyFunction(absl::string_view name, const TemplateArguments& arguments) {
  if (name == "raise_exception") {
    SHALE_ASSIGN_OR_RETURN(const std::string message, TextArgument(arguments, 0, "message", name));
    return Error("the template refuses the conversation: ", Quoted(message));
  }
  if (name == "namespace" && arguments.values.empty()) {
    Value space = Value::Of(Value::Dict(arguments.keywords.begin(), arguments.keywords.end()));
    if (space.depth > kMaxNesting) return Error("values lie too deep in each other");
    space.number = 1;  // Its attributes can be set.
    space.has_namespace = true;
    return space;
  }
  if (name == "range" && arguments.keywords.empty() && !arguments.values.empty() && arguments.values.size() <= 3) {
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < arguments.values.size(); ++i) {
      if (!arguments.values[i].is_number()) return Error("range: wanted integers");
      bounds[arguments.values.size() == 1 ? 1 : i] = arguments.values[i].number;
    }
    if (bounds[2] == 0) return Error("range: a step of 0");
    Value::List all;
    bool ends = false;  // The next number would be too large.
    for (int64_t i = bounds[0]; !ends && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]);
         ends = __builtin_add_overflow(i, bounds[2], &i)) {
      if (std::ssize(all) >= kMostElements) return Error("range: more than ", kMostElements, " numbers");
      all.push_back(Value::Integer(i));
    }
    return Value::Of(std::move(all));
  }
  return Error("the function ", Quoted(name), " is not supported");
}

absl::StatusOr<Value> ItemOf(const Value& value, const Value& index) {
  if (value.is(Kind::kUndefined)) return Error(Quoted(value.text), " is undefined");
  if (value.is(Kind::kDict)) {
    const Value* found = index.is(Kind::kString) ? value.Find(index.text) : nullptr;
    return found != nullptr ? *found : Value::Undefined(index.text);
  }
  if (index.is_number() && (value.is(Kind::kList) || value.is(Kind::kString))) {
    SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
    const int64_t size = std::ssize(elements), at = index.number < 0 ? index.number + size : index.number;
    return at >= 0 && at < size ? elements[at] : Value::Undefined(absl::StrCat("element ", index.number));
  }
  return Value::Undefined(index.is(Kind::kString) ? index.text : "an element");
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value (&bounds)[3]) {
  if (!value.is(Kind::kList) && !value.is(Kind::kString)) return Error("a slice of ", value.type());
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
  const int64_t size = std::ssize(elements);
  for (const Value& bound : bounds) {
    if (!bound.is_number() && !bound.is(Kind::kNone) && !bound.is(Kind::kUndefined)) {
      return Error("a slice with ", bound.type());
    }
  }
  const int64_t step = bounds[2].is_number() ? bounds[2].number : 1;
  if (step == 0) return Error("a slice with a step of 0");
  const auto place = [&](const Value& bound, int64_t otherwise) {
    if (!bound.is_number()) return otherwise;
    const int64_t at = bound.number < 0 ? bound.number + size : bound.number;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t begin = place(bounds[0], step > 0 ? 0 : size - 1), end = place(bounds[1], step > 0 ? size : -1);
  Value::List part;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    part.push_back(elements[i]);
    if (step > size || step < -size) break;
  }
  if (value.is(Kind::kList)) return Value::Of(std::move(part));
  std::string text;
  for (const Value& character : part) text += character.text;
  return Value::Text(text);
}

absl::StatusOr<Value::List> ElementsOf(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined: return Value::List();
    case Kind::kList: return *value.list;
    case Kind::kString: {
      Value::List all;
      for (const absl::string_view character : Characters(value.text)) all.push_back(Value::Text(character));
      return all;
    }
    case Kind::kDict: {
      Value::List all;
      for (const auto& item : *value.dict) all.push_back(Value::Text(item.first));
      return all;
    }
    default: return Error(value.type(), " has no elements");
  }
}

}  // namespace shale
