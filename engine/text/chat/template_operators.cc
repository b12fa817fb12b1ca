#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/template_operations.h"
#include "engine/text/tokenizer/character.h"
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

// Public methods of Python's types.
constexpr absl::string_view kDictMethods[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                              "pop",   "popitem", "setdefault", "update", "values"};
constexpr absl::string_view kListMethods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                              "insert", "pop",   "remove", "reverse", "sort"};
constexpr absl::string_view kStringMethods[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};

bool HasMethod(const Value& value, absl::string_view name) {
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (value.is(ValueKind::kString)) return has(kStringMethods);
  if (value.is(ValueKind::kDict)) return !value.is_object() && has(kDictMethods);
  return value.is(ValueKind::kList) && value.form == Value::Form::kList && has(kListMethods);
}

// Returns what an object has no element for, and a method of this name perhaps.
absl::StatusOr<Value> MethodOr(const Value& value, const std::string& name) {
  if (HasMethod(value, name)) return Value::Function(name);
  if (value.is_object() && value.number == kLoopState) {
    return TemplateError("\"loop\" has no ", Quoted(name), " here");
  }
  return Value::Undefined(name);
}

absl::StatusOr<bool> Contains(const Value& all, const Value& one, TemplateBudget& budget) {
  if (all.is(ValueKind::kString) && one.is(ValueKind::kString)) {
    SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(all.text().size())));
    return FindText(all.text(), one.text(), 0) != absl::string_view::npos;
  }
  if (all.is(ValueKind::kString)) return TemplateError("in: found ", one.type(), "; wanted a string");
  if (all.is(ValueKind::kUndefined)) return false;
  if (all.is_object() || (all.is(ValueKind::kList) && all.form == Value::Form::kGenerator)) {
    return TemplateError("in ", all.type(), " is not supported");
  }
  if (all.is(ValueKind::kDict)) {
    SHALE_RETURN_IF_ERROR(budget.Take(8 * static_cast<double>(all.dict->size())));
    return one.is(ValueKind::kString) && all.Find(one.text()) != nullptr;
  }
  if (!all.is(ValueKind::kList)) return TemplateError(all.type(), " has no elements");
  for (const Value& element : *all.list) {
    SHALE_ASSIGN_OR_RETURN(const bool same, Equal(element, one, budget));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<Value> Joined(const Value& a, const Value& b, TemplateBudget& budget) {
  SHALE_ASSIGN_OR_RETURN(const auto left, Printed(a));
  SHALE_ASSIGN_OR_RETURN(const auto right, Printed(b));
  const size_t origins = left->origins.size() + right->origins.size();
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(left->bytes.size()) + static_cast<double>(right->bytes.size()) +
                                    static_cast<double>(origins * sizeof(TextOrigin)) + TemplateBudget::kElementBytes));
  TemplateText both;
  both.bytes.reserve(left->bytes.size() + right->bytes.size());
  both.origins.reserve(origins);
  both.Append(*left);
  both.Append(*right);
  return Value::Text(std::move(both));
}

// Returns where each character of a string begins, and its end. Takes their bytes from the budget.
absl::StatusOr<std::vector<size_t>> CharacterBegins(const Value& value, TemplateBudget& budget) {
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(value.text().size() * (1 + sizeof(size_t)))));
  std::vector<size_t> begins;
  const std::string& text = value.text();
  for (const char* at = text.data(); at < text.data() + text.size(); NextCharacter(&at)) {
    begins.push_back(at - text.data());
  }
  begins.push_back(text.size());
  return begins;
}

}  // namespace

size_t FindText(absl::string_view all, absl::string_view one, size_t from) {
  if (from > all.size()) return absl::string_view::npos;
  // memmem takes linear time for any text. But AddressSanitizer checks all that is left of the text in each call, so
  // that to replace every character would take quadratic time there.
  constexpr size_t kShort = 16;
  if (one.size() <= kShort) return all.find(one, from);
  const void* found = memmem(all.data() + from, all.size() - from, one.data(), one.size());
  return found == nullptr ? absl::string_view::npos : static_cast<const char*>(found) - all.data();
}

absl::StatusOr<Value> PartOf(const Value& value, size_t begin, size_t end, TemplateBudget& budget) {
  if (begin == 0 && end == value.text().size()) return value;
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(end - begin) + TemplateBudget::kElementBytes +
                                    static_cast<double>(value.string->origins.size() * sizeof(TextOrigin))));
  return Value::Text(value.string->Part(begin, end));
}

absl::StatusOr<Value> ApplyBinary(absl::string_view sign, const Value& a, const Value& b, TemplateBudget& budget) {
  if (sign == "==" || sign == "!=") {
    SHALE_ASSIGN_OR_RETURN(const bool same, Equal(a, b, budget));
    return Value::Bool(same == (sign == "=="));
  }
  if (sign == "in") {
    SHALE_ASSIGN_OR_RETURN(const bool found, Contains(b, a, budget));
    return Value::Bool(found);
  }
  if (sign == "~") return Joined(a, b, budget);
  for (const Value* value : {&a, &b}) {
    if (value->is(ValueKind::kUndefined)) return TemplateError(Quoted(value->text()), " is undefined");
  }
  const bool texts = a.is(ValueKind::kString) && b.is(ValueKind::kString), numbers = a.is_number() && b.is_number();
  if (texts || numbers) {
    if (texts) SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(std::min(a.text().size(), b.text().size()))));
    const int order = numbers ? (a.number > b.number) - (a.number < b.number) : a.text().compare(b.text());
    if (sign == "<") return Value::Bool(order < 0);
    if (sign == "<=") return Value::Bool(order <= 0);
    if (sign == ">") return Value::Bool(order > 0);
    if (sign == ">=") return Value::Bool(order >= 0);
  }
  if (texts && sign == "+") return Joined(a, b, budget);
  if (numbers) {
    SHALE_ASSIGN_OR_RETURN(const int64_t result, Arithmetic(sign, a.number, b.number));
    return Value::Integer(result);
  }
  const auto adds = [](const Value& value) {
    return value.is(ValueKind::kList) && (value.form == Value::Form::kList || value.form == Value::Form::kTuple);
  };
  if (sign == "+" && adds(a) && adds(b) && a.form == b.form) {
    SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(a.list->size() + b.list->size())));
    Value::List both = *a.list;
    both.insert(both.end(), b.list->begin(), b.list->end());
    if (std::ssize(both) > kMaxElements) return TemplateError("a list is too long");
    return Value::Of(std::move(both), a.form);
  }
  return TemplateError(sign, " of ", a.type(), " and ", b.type(), " is not supported");
}

absl::StatusOr<Value> AttributeOf(const Value& value, const std::string& name, TemplateBudget& budget) {
  if (HasMethod(value, name)) return Value::Function(name);
  return ItemOf(value, Value::Text(name), budget);
}

absl::StatusOr<Value> ItemOf(const Value& value, const Value& index, TemplateBudget& budget) {
  if (value.is(ValueKind::kUndefined)) return TemplateError(Quoted(value.text()), " is undefined");
  if (value.is(ValueKind::kDict)) {
    SHALE_RETURN_IF_ERROR(budget.Take(8 * static_cast<double>(value.dict->size())));
    const Value* found = index.is(ValueKind::kString) ? value.Find(index.text()) : nullptr;
    if (found != nullptr) return *found;
  }
  if (index.is(ValueKind::kString)) return MethodOr(value, index.text());
  const bool has_places =
      value.is(ValueKind::kString) ||
      (value.is(ValueKind::kList) && value.form != Value::Form::kView && value.form != Value::Form::kGenerator);
  if (!index.is_number() || !has_places) return Value::Undefined("an element");
  const auto place = [&](int64_t size) { return index.number < 0 ? index.number + size : index.number; };
  const auto missing = [&] { return Value::Undefined(absl::StrCat("element ", index.number)); };
  if (value.is(ValueKind::kList)) {
    const int64_t size = std::ssize(*value.list), at = place(size);
    return at >= 0 && at < size ? (*value.list)[at] : missing();
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<size_t> begins, CharacterBegins(value, budget));
  const int64_t size = std::ssize(begins) - 1, at = place(size);
  if (at < 0 || at >= size) return missing();
  return PartOf(value, begins[at], begins[at + 1], budget);
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value (&bounds)[3], TemplateBudget& budget) {
  if (!value.is(ValueKind::kList) && !value.is(ValueKind::kString)) {
    return TemplateError("a slice of ", value.type(), "; wanted a list or a string");
  }
  if (value.is(ValueKind::kList) && (value.form == Value::Form::kView || value.form == Value::Form::kGenerator)) {
    return TemplateError("a slice of ", value.type(), " is not supported");
  }
  for (const Value& bound : bounds) {
    if (!bound.is_number() && !bound.is(ValueKind::kNone) && !bound.is(ValueKind::kUndefined)) {
      return TemplateError("the bounds of a slice must be integers; found ", bound.type());
    }
  }
  std::vector<size_t> begins;
  if (value.is(ValueKind::kString)) {
    SHALE_ASSIGN_OR_RETURN(begins, CharacterBegins(value, budget));
  }
  const int64_t size = value.is(ValueKind::kString) ? std::ssize(begins) - 1 : std::ssize(*value.list);
  const int64_t step = bounds[2].is_number() ? bounds[2].number : 1;
  if (step == 0) return TemplateError("the step of a slice is 0");
  const auto place = [&](const Value& bound, int64_t otherwise) {
    if (!bound.is_number()) return otherwise;
    const int64_t at = bound.number < 0 ? bound.number + size : bound.number;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t begin = place(bounds[0], step > 0 ? 0 : size - 1), end = place(bounds[1], step > 0 ? size : -1);
  if (value.is(ValueKind::kString) && step == 1) {
    return PartOf(value, begins[begin], begins[std::max(begin, end)], budget);
  }
  std::vector<int64_t> places;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    places.push_back(i);
    if (step > size || step < -size) break;
  }
  SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(places.size())));
  if (value.is(ValueKind::kList)) {
    Value::List part;
    for (const int64_t i : places) part.push_back((*value.list)[i]);
    return Value::Of(std::move(part), value.form);
  }
  TemplateText text;
  for (const int64_t i : places) {
    text.Append(absl::string_view(value.text()).substr(begins[i], begins[i + 1] - begins[i]));
  }
  return Value::Text(std::move(text));
}

absl::StatusOr<Value::List> ElementsOf(const Value& value, TemplateBudget& budget) {
  switch (value.kind) {
    case ValueKind::kUndefined: return Value::List();
    case ValueKind::kList:
      if (value.form == Value::Form::kGenerator) return std::exchange(*value.list, {});
      SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(value.list->size())));
      return *value.list;
    case ValueKind::kString: {
      SHALE_ASSIGN_OR_RETURN(const std::vector<size_t> begins, CharacterBegins(value, budget));
      SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(begins.size() - 1)));
      Value::List all;
      for (size_t i = 0; i + 1 < begins.size(); ++i) {
        all.push_back(Value::Text(absl::string_view(value.text()).substr(begins[i], begins[i + 1] - begins[i])));
      }
      return all;
    }
    case ValueKind::kDict: {
      if (value.is_object()) return TemplateError("an object has no elements");
      Value::List all;
      for (const auto& item : *value.dict) {
        SHALE_RETURN_IF_ERROR(budget.Take(TemplateBudget::kElementBytes + static_cast<double>(item.first.size())));
        all.push_back(Value::Text(item.first));
      }
      return all;
    }
    default: return TemplateError(value.type(), " has no elements");
  }
}

absl::StatusOr<int64_t> CountOf(const Value& value, TemplateBudget& budget) {
  switch (value.kind) {
    case ValueKind::kUndefined: return 0;
    case ValueKind::kList:
      if (value.form == Value::Form::kGenerator) return TemplateError("a generator has no length");
      return std::ssize(*value.list);
    case ValueKind::kDict:
      if (value.is_object()) return TemplateError("an object has no length");
      return std::ssize(*value.dict);
    case ValueKind::kString: {
      SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(value.text().size())));
      return std::count_if(value.text().begin(), value.text().end(),
                           [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
    }
    default: return TemplateError(value.type(), " has no elements");
  }
}

}  // namespace shale
