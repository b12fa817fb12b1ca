#include "engine/tokenize/template_filters.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"
#include "engine/tokenize/template_functions.h"
#include "engine/tokenize/template_operators.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

// Returns the elements whose attribute passes a test (selectattr), or does not (rejectattr).
absl::StatusOr<Value> SelectAttribute(absl::string_view filter, const Value& value,
                                      const TemplateArguments& arguments) {
  SHALE_ASSIGN_OR_RETURN(const std::string attribute, arguments.Text(0, "attribute", filter));
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
  Value::List selected;
  for (const Value& element : elements) {
    SHALE_ASSIGN_OR_RETURN(const Value found, ItemOf(element, Value::Text(attribute)));
    bool passes = found.truth();
    if (arguments.values.size() > 1) {
      SHALE_ASSIGN_OR_RETURN(const std::string test, arguments.Text(1, "test", filter));
      TemplateArguments rest;
      rest.values.assign(arguments.values.begin() + 2, arguments.values.end());
      SHALE_ASSIGN_OR_RETURN(passes, ApplyTest(test, found, rest));
    }
    if (passes == (filter == "selectattr")) selected.push_back(element);
  }
  return Value::Of(std::move(selected));
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const TemplateArguments& arguments) {
  if (name == "default" || name == "d") {
    const Value* other = arguments.Find(0, "default_value");
    const Value* empty = arguments.Find(1, "boolean");
    const bool replaces = value.is(ValueKind::kUndefined) || (empty != nullptr && empty->truth() && !value.truth());
    return !replaces ? value : other == nullptr ? Value::Text("") : *other;
  }
  if (name == "tojson") {
    if (arguments.Find(0, "indent") != nullptr) return TemplateError("tojson with arguments is not supported");
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
    return TemplateError("the filter ", Quoted(name), " is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(Value::List elements, ElementsOf(value));
  if (name == "length" || name == "count") return Value::Integer(std::ssize(elements));
  if (name == "list") return Value::Of(std::move(elements));
  if (name == "first") return elements.empty() ? Value::Undefined("first of nothing") : elements.front();
  if (name == "last") return elements.empty() ? Value::Undefined("last of nothing") : elements.back();
  if (name == "reverse") {
    if (value.is(ValueKind::kString)) return TemplateError("reverse of a string is not supported");
    std::reverse(elements.begin(), elements.end());
    return Value::Of(std::move(elements));
  }
  if (name == "map") {
    if (!arguments.values.empty() || arguments.keywords.size() != 1 || arguments.keywords[0].first != "attribute") {
      return TemplateError("map without attribute= is not supported");
    }
    for (Value& element : elements) {
      SHALE_ASSIGN_OR_RETURN(element, ItemOf(element, arguments.keywords[0].second));
    }
    return Value::Of(std::move(elements));
  }
  const Value* separator = arguments.Find(0, "d");
  const std::string between = separator == nullptr ? "" : separator->text;
  std::string joined;
  for (size_t i = 0; i < elements.size(); ++i) {
    SHALE_ASSIGN_OR_RETURN(const std::string text, Printed(elements[i]));
    absl::StrAppend(&joined, i > 0 ? between : "", text);
    SHALE_RETURN_IF_ERROR(CheckTextLength(static_cast<double>(joined.size())));
  }
  return Value::Text(joined);
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const TemplateArguments& arguments) {
  if (name == "defined") return !value.is(ValueKind::kUndefined);
  if (name == "undefined") return value.is(ValueKind::kUndefined);
  if (name == "none") return value.is(ValueKind::kNone);
  if (name == "string") return value.is(ValueKind::kString);
  if (name == "mapping") return value.is(ValueKind::kDict);
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is(ValueKind::kInteger);
  if (name == "boolean") return value.is(ValueKind::kBool);
  if (name == "true") return value.is(ValueKind::kBool) && value.number != 0;
  if (name == "false") return value.is(ValueKind::kBool) && value.number == 0;
  const bool walks = value.is(ValueKind::kString) || value.is(ValueKind::kList) || value.is(ValueKind::kDict);
  if (name == "iterable") return walks || value.is(ValueKind::kUndefined);
  if (name == "sequence") return walks || value.is(ValueKind::kUndefined);
  if ((name == "equalto" || name == "eq" || name == "ne" || name == "in") && arguments.values.size() == 1) {
    if (name == "in") {
      SHALE_ASSIGN_OR_RETURN(const Value found, ApplyBinary("in", value, arguments.values[0]));
      return found.truth();
    }
    return (value == arguments.values[0]) == (name != "ne");
  }
  return TemplateError("the test ", Quoted(name), " is not supported");
}

}  // namespace shale
