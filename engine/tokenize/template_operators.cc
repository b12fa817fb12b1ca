#include "engine/tokenize/template_operators.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

absl::StatusOr<int64_t> Arithmetic(absl::string_view sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (sign == "//" || sign == "%") {
    if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return TemplateError("a division by ", b);
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    result = sign == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  if (overflow) return TemplateError("an integer is too large");
  return result;
}

absl::StatusOr<bool> Contains(const Value& all, const Value& one) {
  if (all.is(ValueKind::kString) && one.is(ValueKind::kString)) return absl::StrContains(all.text, one.text);
  if (all.is(ValueKind::kString)) return TemplateError("in: found ", one.type(), "; wanted a string");
  if (all.is(ValueKind::kUndefined)) return false;
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(all));
  return std::find(elements.begin(), elements.end(), one) != elements.end();
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
    SHALE_RETURN_IF_ERROR(CheckTextLength(static_cast<double>(left.size() + right.size())));
    return Value::Text(absl::StrCat(left, right));
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(ValueKind::kUndefined)) return TemplateError(Quoted(value->text), " is undefined");
  }
  const bool texts = a.is(ValueKind::kString) && b.is(ValueKind::kString), numbers = a.is_number() && b.is_number();
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
  if (sign == "+" && a.is(ValueKind::kList) && b.is(ValueKind::kList)) {
    Value::List both = *a.list;
    both.insert(both.end(), b.list->begin(), b.list->end());
    if (std::ssize(both) > kMaxElements) return TemplateError("a list is too long");
    return Value::Of(std::move(both));
  }
  return TemplateError(sign, " of ", a.type(), " and ", b.type(), " is not supported");
}

absl::StatusOr<Value> ItemOf(const Value& value, const Value& index) {
  if (value.is(ValueKind::kUndefined)) return TemplateError(Quoted(value.text), " is undefined");
  if (value.is(ValueKind::kDict)) {
    const Value* found = index.is(ValueKind::kString) ? value.Find(index.text) : nullptr;
    return found != nullptr ? *found : Value::Undefined(index.text);
  }
  if (index.is_number() && (value.is(ValueKind::kList) || value.is(ValueKind::kString))) {
    SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
    const int64_t size = std::ssize(elements), at = index.number < 0 ? index.number + size : index.number;
    return at >= 0 && at < size ? elements[at] : Value::Undefined(absl::StrCat("element ", index.number));
  }
  return Value::Undefined(index.is(ValueKind::kString) ? index.text : "an element");
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value (&bounds)[3]) {
  if (!value.is(ValueKind::kList) && !value.is(ValueKind::kString)) {
    return TemplateError("a slice of ", value.type(), "; wanted a list or a string");
  }
  SHALE_ASSIGN_OR_RETURN(const Value::List elements, ElementsOf(value));
  const int64_t size = std::ssize(elements);
  for (const Value& bound : bounds) {
    if (!bound.is_number() && !bound.is(ValueKind::kNone) && !bound.is(ValueKind::kUndefined)) {
      return TemplateError("the bounds of a slice must be integers; found ", bound.type());
    }
  }
  const int64_t step = bounds[2].is_number() ? bounds[2].number : 1;
  if (step == 0) return TemplateError("the step of a slice is 0");
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
  if (value.is(ValueKind::kList)) return Value::Of(std::move(part));
  std::string text;
  for (const Value& character : part) text += character.text;
  return Value::Text(text);
}

absl::StatusOr<Value::List> ElementsOf(const Value& value) {
  switch (value.kind) {
    case ValueKind::kUndefined: return Value::List();
    case ValueKind::kList: return *value.list;
    case ValueKind::kString: {
      Value::List all;
      for (const absl::string_view character : SplitCharacters(value.text)) all.push_back(Value::Text(character));
      return all;
    }
    case ValueKind::kDict: {
      Value::List all;
      for (const auto& item : *value.dict) all.push_back(Value::Text(item.first));
      return all;
    }
    default: return TemplateError(value.type(), " has no elements");
  }
}

}  // namespace shale
