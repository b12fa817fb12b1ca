#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/template_operations.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

// Refuses names with dots and numbers, which Jinja takes for a way through several values.
absl::Status CheckAttribute(const std::string& name) {
  const bool simple = !name.empty() && name.find_first_of(".0123456789") == std::string::npos;
  return simple ? absl::OkStatus() : TemplateError("the attribute ", Quoted(name), " is not supported");
}

// Returns the elements whose attribute passes a test (selectattr), or does not (rejectattr).
absl::StatusOr<Value> SelectAttribute(absl::string_view filter, const Value& value, const TemplateArguments& arguments,
                                      TemplateBudget& budget) {
  SHALE_ASSIGN_OR_RETURN(const std::string attribute, arguments.Text(0, "attribute", filter));
  SHALE_RETURN_IF_ERROR(CheckAttribute(attribute));
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value, budget));
  Value::List selected;
  for (const Value& element : elements) {
    SHALE_ASSIGN_OR_RETURN(const Value found, ItemOf(element, Value::Text(attribute), budget));
    bool passes = found.truth();
    if (arguments.values.size() > 1) {
      SHALE_ASSIGN_OR_RETURN(const std::string test, arguments.Text(1, "test", filter));
      TemplateArguments rest;
      rest.values.assign(arguments.values.begin() + 2, arguments.values.end());
      SHALE_ASSIGN_OR_RETURN(passes, ApplyTest(test, found, rest, budget));
    }
    if (passes == (filter == "selectattr")) selected.push_back(element);
  }
  return Value::Of(std::move(selected), Value::Form::kGenerator);
}

absl::StatusOr<Value> ToJson(const Value& value, const TemplateArguments& arguments, TemplateBudget& budget) {
  constexpr int64_t kMostSpaces = 64;
  int64_t indent = -1;
  if (!arguments.values.empty()) return TemplateError("tojson with arguments that have no name is not supported");
  for (const auto& [name, argument] : arguments.keywords) {
    if (name == "ensure_ascii" && argument.is(ValueKind::kBool) && argument.number == 0) continue;
    if (name == "indent" && argument.is(ValueKind::kNone)) continue;
    if (name != "indent" || !argument.is(ValueKind::kInteger) || argument.number < 0 || argument.number > kMostSpaces) {
      return TemplateError("tojson: the argument ", Quoted(name), " is not supported with this value");
    }
    indent = argument.number;
  }
  SHALE_ASSIGN_OR_RETURN(TemplateText json, AsJson(value, static_cast<int>(indent), budget));
  return Value::Text(std::move(json));
}

absl::StatusOr<Value> Join(const Value::List& elements, const TemplateArguments& arguments, TemplateBudget& budget) {
  if (arguments.values.size() > 1 ||
      (arguments.values.empty() && !arguments.keywords.empty() && arguments.keywords[0].first != "d")) {
    return TemplateError("join with an attribute is not supported");
  }
  const Value* separator = arguments.Find(0, "d");
  TemplateText joined;
  for (size_t i = 0; i < elements.size(); ++i) {
    for (const Value* value : {i > 0 ? separator : nullptr, &elements[i]}) {
      if (value == nullptr) continue;
      SHALE_ASSIGN_OR_RETURN(const auto text, Printed(*value));
      SHALE_RETURN_IF_ERROR(budget.Take(2 * static_cast<double>(text->bytes.size()) +
                                        2 * static_cast<double>(text->origins.size() * sizeof(TextOrigin))));
      joined.Append(*text);
    }
  }
  return Value::Text(std::move(joined));
}

// Applies a filter of what has elements.
absl::StatusOr<Value> ApplyListFilter(absl::string_view name, const Value& value, const TemplateArguments& arguments,
                                      TemplateBudget& budget) {
  if (name == "length" || name == "count") {
    SHALE_ASSIGN_OR_RETURN(const int64_t count, CountOf(value, budget));
    return Value::Integer(count);
  }
  const bool generator = value.is(ValueKind::kList) && value.form == Value::Form::kGenerator;
  if (generator && name == "first") {  // Takes one element away.
    Value::List& left = *value.list;
    if (left.empty()) return Value::Undefined("first of nothing");
    SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(left.size())));
    const Value first = left.front();
    left.erase(left.begin());
    return first;
  }
  if (generator && (name == "last" || name == "reverse")) {
    return TemplateError(name, " of a generator is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(Value::List elements, ElementsOf(value, budget));
  if (name == "list") return Value::Of(std::move(elements));
  if (name == "first") return elements.empty() ? Value::Undefined("first of nothing") : elements.front();
  if (name == "last") return elements.empty() ? Value::Undefined("last of nothing") : elements.back();
  if (name == "join") return Join(elements, arguments, budget);
  if (name == "reverse") {
    if (value.is(ValueKind::kString)) return TemplateError("reverse of a string is not supported");
    std::reverse(elements.begin(), elements.end());
    return Value::Of(std::move(elements), Value::Form::kGenerator);
  }
  if (!arguments.values.empty() || arguments.keywords.size() != 1 || arguments.keywords[0].first != "attribute") {
    return TemplateError("map without attribute= is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string attribute, arguments.Text(0, "attribute", name));
  SHALE_RETURN_IF_ERROR(CheckAttribute(attribute));
  for (Value& element : elements) {
    SHALE_ASSIGN_OR_RETURN(element, ItemOf(element, Value::Text(attribute), budget));
  }
  return Value::Of(std::move(elements), Value::Form::kGenerator);
}

// Writes values as json.dumps(value, ensure_ascii=False, indent=indent) does.
class JsonWriter {
 public:
  JsonWriter(int indent, TemplateBudget& budget) : indent_(indent), budget_(budget) {}

  absl::Status Write(const Value& value) {
    SHALE_RETURN_IF_ERROR(budget_.Take(8));
    switch (value.kind) {
      case Value::Kind::kUndefined: return TemplateError("tojson of an undefined value");
      case Value::Kind::kFunction: return TemplateError("tojson of a function");
      case Value::Kind::kNone: json_.Append("null"); break;
      case Value::Kind::kBool: json_.Append(value.number != 0 ? "true" : "false"); break;
      case Value::Kind::kInteger: json_.Append(absl::StrCat(value.number)); break;
      case Value::Kind::kFloat: json_.Append(value.string ? value.text() : PythonFloat(value.real)); break;
      case Value::Kind::kString: return WriteString(*value.string);
      case Value::Kind::kList: {
        if (value.form != Value::Form::kList && value.form != Value::Form::kTuple) {
          return TemplateError("tojson of ", value.type(), " is not supported");
        }
        if (value.list->empty()) return Plain("[]");
        ++level_;
        absl::string_view before = "[";
        for (const Value& element : *value.list) {
          SHALE_RETURN_IF_ERROR(Separate(std::exchange(before, ",")));
          SHALE_RETURN_IF_ERROR(Write(element));
        }
        return Close("]");
      }
      case Value::Kind::kDict: {
        if (value.is_object()) return TemplateError("tojson of an object is not supported");
        if (value.dict->empty()) return Plain("{}");
        ++level_;
        absl::string_view before = "{";
        for (const auto& [name, element] : *value.dict) {
          SHALE_RETURN_IF_ERROR(Separate(std::exchange(before, ",")));
          SHALE_RETURN_IF_ERROR(WriteString({name, {}}));
          json_.Append(": ");
          SHALE_RETURN_IF_ERROR(Write(element));
        }
        return Close("}");
      }
    }
    return absl::OkStatus();
  }
  TemplateText TakeText() { return std::move(json_); }

 private:
  absl::Status Plain(absl::string_view text) {
    json_.Append(text);
    return absl::OkStatus();
  }
  // Writes what stands before an element: a bracket before the first one, and a comma before the others.
  absl::Status Separate(absl::string_view before) {
    json_.Append(before);
    if (indent_ >= 0) return NewLine();
    if (before == ",") json_.Append(" ");
    return absl::OkStatus();
  }
  absl::Status Close(absl::string_view bracket) {
    --level_;
    if (indent_ >= 0) SHALE_RETURN_IF_ERROR(NewLine());
    return Plain(bracket);
  }
  absl::Status NewLine() {
    const size_t spaces = static_cast<size_t>(level_) * static_cast<size_t>(indent_);
    SHALE_RETURN_IF_ERROR(budget_.Take(static_cast<double>(spaces + 1)));
    json_.bytes += '\n';
    json_.bytes.append(spaces, ' ');
    return absl::OkStatus();
  }

  absl::Status WriteString(const TemplateText& text) {
    SHALE_RETURN_IF_ERROR(
        budget_.Take(2 + 2 * static_cast<double>(text.bytes.size() + text.origins.size() * sizeof(TextOrigin))));
    json_.Append("\"");
    auto origin = text.origins.begin();
    for (size_t at = 0; at < text.bytes.size();) {
      while (origin != text.origins.end() && origin->end <= at) ++origin;
      const bool inside = origin != text.origins.end() && origin->begin <= at;
      const size_t stop = origin == text.origins.end() ? text.bytes.size() : inside ? origin->end : origin->begin;
      size_t next = at;
      while (next < stop && !Escapes(text.bytes[next])) ++next;
      std::string written = text.bytes.substr(at, next - at);
      if (next == at) {
        SHALE_RETURN_IF_ERROR(budget_.Take(8 + sizeof(TextOrigin)));
        written = Escaped(text.bytes[next++]);
      }
      if (inside && (origin->as_it_is() || (at == origin->begin && next == origin->end))) {
        const bool whole = !origin->as_it_is();
        json_.origins.push_back({.begin = json_.bytes.size(),
                                 .end = json_.bytes.size() + written.size(),
                                 .source = origin->source,
                                 .from = whole ? origin->from : origin->from + (at - origin->begin),
                                 .to = whole ? origin->to : origin->from + (next - origin->begin)});
      }
      json_.Append(written);
      at = next;
    }
    return Plain("\"");
  }
  static bool Escapes(char c) { return c == '"' || c == '\\' || static_cast<uint8_t>(c) < 0x20; }
  static std::string Escaped(char c) {
    switch (c) {
      case '"': return "\\\"";
      case '\\': return "\\\\";
      case '\n': return "\\n";
      case '\r': return "\\r";
      case '\t': return "\\t";
      case '\b': return "\\b";
      case '\f': return "\\f";
      default: return absl::StrFormat("\\u%04x", static_cast<int>(c));
    }
  }

  const int indent_;
  TemplateBudget& budget_;
  TemplateText json_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const TemplateArguments& arguments,
                                  TemplateBudget& budget) {
  if (name == "default" || name == "d") {
    const Value* other = arguments.Find(0, "default_value");
    const Value* empty = arguments.Find(1, "boolean");
    const bool replaces = value.is(ValueKind::kUndefined) || (empty != nullptr && empty->truth() && !value.truth());
    return !replaces ? value : other == nullptr ? Value::Text("") : *other;
  }
  if (name == "tojson") return ToJson(value, arguments, budget);
  if (name == "string" || name == "safe" || name == "trim" || name == "upper" || name == "lower" || name == "title" ||
      name == "capitalize" || name == "replace") {
    SHALE_ASSIGN_OR_RETURN(const auto text, Printed(value));
    const Value printed = {.kind = ValueKind::kString, .string = text};
    if (name == "string" || name == "safe") return printed;
    if (name == "title") return JinjaTitle(printed, budget);
    return ApplyMethod(name == "trim" ? "strip" : name, printed, arguments, budget);
  }
  if (name == "selectattr" || name == "rejectattr") return SelectAttribute(name, value, arguments, budget);
  if (name == "items") {
    SHALE_ASSIGN_OR_RETURN(Value items, ApplyMethod("items", value, arguments, budget));
    items.form = Value::Form::kGenerator;
    return items;
  }
  for (const absl::string_view one : {"length", "count", "list", "first", "last", "join", "map", "reverse"}) {
    if (name == one) return ApplyListFilter(name, value, arguments, budget);
  }
  return TemplateError("the filter ", Quoted(name), " is not supported");
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const TemplateArguments& arguments,
                               TemplateBudget& budget) {
  if (name == "defined") return !value.is(ValueKind::kUndefined);
  if (name == "undefined") return value.is(ValueKind::kUndefined);
  if (name == "none") return value.is(ValueKind::kNone);
  if (name == "string") return value.is(ValueKind::kString);
  if (name == "mapping") return value.is(ValueKind::kDict) && !value.is_object();
  if (name == "number") return value.is_number() || value.is(ValueKind::kFloat);
  if (name == "integer") return value.is(ValueKind::kInteger) || value.is_large_integer();
  if (name == "float") return value.is(ValueKind::kFloat) && !value.is_large_integer();
  if (name == "boolean") return value.is(ValueKind::kBool);
  if (name == "true") return value.is(ValueKind::kBool) && value.number != 0;
  if (name == "false") return value.is(ValueKind::kBool) && value.number == 0;
  const bool object = value.is_object() && value.number == kNamespace;
  const bool walks =
      value.is(ValueKind::kString) || value.is(ValueKind::kList) || (value.is(ValueKind::kDict) && !object);
  if (name == "iterable") return walks || value.is(ValueKind::kUndefined);
  if (name == "sequence") {
    if (value.is_object() || value.is(ValueKind::kFunction)) return TemplateError("sequence of ", value.type());
    const bool passes =
        value.is(ValueKind::kList) && (value.form == Value::Form::kView || value.form == Value::Form::kGenerator);
    return (walks && !passes) || value.is(ValueKind::kUndefined);
  }
  if ((name == "equalto" || name == "eq" || name == "ne" || name == "in") && arguments.values.size() == 1) {
    const absl::string_view sign = name == "in" ? "in" : name == "ne" ? "!=" : "==";
    SHALE_ASSIGN_OR_RETURN(const Value found, ApplyBinary(sign, value, arguments.values[0], budget));
    return found.truth();
  }
  return TemplateError("the test ", Quoted(name), " is not supported");
}

std::string PythonFloat(double value) {
  char buffer[64];
  const char* end = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(value), std::chars_format::scientific).ptr;
  const absl::string_view all(buffer, end - buffer);
  const size_t e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : all.substr(0, e)) {
    if (c != '.') digits += c;
  }
  const std::string sign = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    const std::string rest = digits.size() > 1 ? absl::StrCat(".", digits.substr(1)) : "";
    return absl::StrFormat("%s%c%se%c%02d", sign, digits[0], rest, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return absl::StrCat(sign, "0.", std::string(-exponent - 1, '0'), digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  return absl::StrCat(sign, digits.substr(0, whole), ".", digits.size() > whole ? digits.substr(whole) : "0");
}

absl::StatusOr<TemplateText> AsJson(const Value& value, int indent, TemplateBudget& budget) {
  JsonWriter writer(indent, budget);
  SHALE_RETURN_IF_ERROR(writer.Write(value));
  return writer.TakeText();
}

}  // namespace shale
