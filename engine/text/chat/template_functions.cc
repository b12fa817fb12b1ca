#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/template_operations.h"
#include "engine/text/chat/template_value.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

constexpr absl::string_view kTemplateFunctions[] = {"raise_exception", "namespace", "range", "strftime_now", "dict",
                                                    "lipsum",          "cycler",    "joiner"};

// Strips characters of `set` from the chosen ends; without a set, white space.
absl::StatusOr<Value> Strip(const Value& self, const Value* set, bool left, bool right, TemplateBudget& budget) {
  const std::string& text = self.text();
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(text.size())));
  std::vector<uint32_t> others;
  if (set != nullptr) {
    SHALE_RETURN_IF_ERROR(budget.Take(16 * static_cast<double>(set->text().size())));
    const std::string& characters = set->text();
    for (const char* at = characters.data(); at < characters.data() + characters.size();) {
      others.push_back(NextCharacter(&at));
    }
    std::sort(others.begin(), others.end());
  }
  const auto strips = [&](uint32_t code) {
    return set == nullptr ? IsPythonSpace(code) : std::binary_search(others.begin(), others.end(), code);
  };
  const char *begin = text.data(), *end = begin + text.size();
  while (left && begin < end) {
    const char* next = begin;
    if (!strips(NextCharacter(&next))) break;
    begin = next;
  }
  while (right && begin < end) {
    const char* last = end - 1;
    while ((static_cast<uint8_t>(*last) & 0xC0) == 0x80) --last;
    const char* at = last;
    if (!strips(NextCharacter(&at))) break;
    end = last;
  }
  return PartOf(self, begin - text.data(), end - text.data(), budget);
}

// Returns the text with the case of its ASCII letters changed. `change` is upper, lower, title or capitalize.
absl::StatusOr<Value> ChangeCase(absl::string_view change, const Value& self, TemplateBudget& budget) {
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(self.text().size())));
  std::string changed(self.text());
  bool inside = false;
  for (char& c : changed) {
    if (static_cast<uint8_t>(c) >= 0x80) return TemplateError(change, " of letters beyond ASCII is not supported");
    const bool upper = change == "upper" || (!inside && change != "lower");
    c = upper ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    inside = change == "capitalize" || absl::ascii_isalpha(c);
  }
  return changed == self.text() ? self : Value::Text(changed);
}

absl::StatusOr<Value> Split(const Value& self, const TemplateArguments& arguments, TemplateBudget& budget) {
  if (arguments.values.size() != 1 || !arguments.keywords.empty()) {
    return TemplateError("split without a separator, or with a limit, is not supported");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string separator, arguments.Text(0, "sep", "split"));
  if (separator.empty()) return TemplateError("split: the separator is empty");
  Value::List parts;
  for (size_t begin = 0; begin != absl::string_view::npos;) {
    const size_t found = FindText(self.text(), separator, begin);
    const bool last = found == absl::string_view::npos;
    SHALE_RETURN_IF_ERROR(budget.TakeElements(1));
    SHALE_ASSIGN_OR_RETURN(Value part, PartOf(self, begin, last ? self.text().size() : found, budget));
    parts.push_back(std::move(part));
    begin = last ? found : found + separator.size();
  }
  return Value::Of(std::move(parts));
}

absl::StatusOr<Value> Replace(const Value& self, const TemplateArguments& arguments, TemplateBudget& budget) {
  SHALE_ASSIGN_OR_RETURN(const std::string from, arguments.Text(0, "old", "replace"));
  SHALE_ASSIGN_OR_RETURN(const std::string to, arguments.Text(1, "new", "replace"));
  if (from.empty()) return TemplateError("replace of an empty string is not supported");
  const std::string& text = self.text();
  SHALE_RETURN_IF_ERROR(budget.Take(2 * static_cast<double>(text.size())));
  TemplateText replaced;
  size_t begin = 0;
  for (size_t found; (found = FindText(text, from, begin)) != absl::string_view::npos; begin = found + from.size()) {
    SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(to.size()) +
                                      static_cast<double>(self.string->origins.size() * sizeof(TextOrigin))));
    replaced.Append(self.string->Part(begin, found));
    replaced.Append(to);
  }
  if (begin == 0) return self;
  replaced.Append(self.string->Part(begin, text.size()));
  return Value::Text(std::move(replaced));
}

absl::StatusOr<Value> StringMethod(absl::string_view name, const Value& self, const TemplateArguments& arguments,
                                   TemplateBudget& budget) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* set = arguments.Find(0, "chars");
    if (set != nullptr && set->is(ValueKind::kNone)) set = nullptr;
    if (set != nullptr && !set->is(ValueKind::kString)) return TemplateError(name, ": wanted a string");
    return Strip(self, set, name != "rstrip", name != "lstrip", budget);
  }
  if (name == "startswith" || name == "endswith") {
    SHALE_ASSIGN_OR_RETURN(const std::string part, arguments.Text(0, "prefix", name));
    SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(part.size())));
    return Value::Bool(name == "endswith" ? absl::EndsWith(self.text(), part) : absl::StartsWith(self.text(), part));
  }
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
    return ChangeCase(name, self, budget);
  }
  if (name == "split") return Split(self, arguments, budget);
  if (name == "replace" && arguments.values.size() == 2 && arguments.keywords.empty()) {
    return Replace(self, arguments, budget);
  }
  return TemplateError("the method ", Quoted(name), " of ", self.type(), " is not supported");
}

absl::StatusOr<Value> Range(const TemplateArguments& arguments, TemplateBudget& budget) {
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
    SHALE_RETURN_IF_ERROR(budget.TakeElements(1));
    all.push_back(Value::Integer(i));
  }
  return Value::Of(std::move(all), Value::Form::kRange);
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
  if (value != nullptr && value->is(ValueKind::kString)) return value->text();
  return TemplateError(of, ": wanted a string as argument ", index + 1, "; found ",
                       value == nullptr ? "none" : value->type());
}

absl::StatusOr<Value> ApplyMethod(absl::string_view name, const Value& self, const TemplateArguments& arguments,
                                  TemplateBudget& budget) {
  if (self.is(ValueKind::kUndefined)) return TemplateError(Quoted(self.text()), " is undefined");
  if (self.is(ValueKind::kString)) return StringMethod(name, self, arguments, budget);
  if (self.is(ValueKind::kDict) && !self.is_object()) {
    SHALE_RETURN_IF_ERROR(budget.Take(8 * static_cast<double>(self.dict->size())));
    if (name == "get" && !arguments.values.empty() && arguments.values[0].is(ValueKind::kString)) {
      const Value* found = self.Find(arguments.values[0].text());
      if (found != nullptr) return *found;
      return arguments.values.size() > 1 ? arguments.values[1] : Value::None();
    }
    if (name == "items" || name == "keys" || name == "values") {
      Value::List all;
      for (const auto& [key, value] : *self.dict) {
        SHALE_RETURN_IF_ERROR(budget.Take(4 * TemplateBudget::kElementBytes + static_cast<double>(key.size())));
        all.push_back(name == "items"  ? Value::Of(Value::List{Value::Text(key), value}, Value::Form::kTuple)
                      : name == "keys" ? Value::Text(key)
                                       : value);
      }
      return Value::Of(std::move(all), Value::Form::kView);
    }
  }
  return TemplateError("the method ", Quoted(name), " of ", self.type(), " is not supported");
}

absl::StatusOr<Value> JinjaTitle(const Value& text, TemplateBudget& budget) {
  SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(text.text().size())));
  std::string changed(text.text());
  bool begins = true;
  for (char& c : changed) {
    if (static_cast<uint8_t>(c) >= 0x80) return TemplateError("title of letters beyond ASCII is not supported");
    c = begins ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    begins = IsPythonSpace(static_cast<uint8_t>(c)) || absl::StrContains("-({[<", absl::string_view(&c, 1));
  }
  return Value::Text(changed);
}

bool IsTemplateFunction(absl::string_view name) {
  return std::find(std::begin(kTemplateFunctions), std::end(kTemplateFunctions), name) != std::end(kTemplateFunctions);
}

absl::StatusOr<Value> ApplyFunction(absl::string_view name, const TemplateArguments& arguments, const std::string& date,
                                    TemplateBudget& budget) {
  if (name == "raise_exception") {
    SHALE_ASSIGN_OR_RETURN(const std::string message, arguments.Text(0, "message", name));
    return TemplateError("the template refuses the conversation: ", Quoted(message.substr(0, 1000)));
  }
  if (name == "namespace" && arguments.values.empty()) {
    SHALE_RETURN_IF_ERROR(budget.TakeElements(static_cast<double>(arguments.keywords.size())));
    Value space = Value::Of(Value::Dict(arguments.keywords.begin(), arguments.keywords.end()));
    if (space.depth > kMaxNesting) return TemplateError("values are nested too deeply");
    space.number = kNamespace;
    space.has_namespace = true;
    return space;
  }
  if (name == "range" && arguments.keywords.empty() && !arguments.values.empty() && arguments.values.size() <= 3) {
    return Range(arguments, budget);
  }
  if (name == "strftime_now") {
    SHALE_ASSIGN_OR_RETURN(const std::string format, arguments.Text(0, "format", name));
    SHALE_ASSIGN_OR_RETURN(const std::string text, FormatTemplateDate(date, format));
    return Value::Text(text);
  }
  return TemplateError("the function ", Quoted(name), " is not supported");
}

absl::StatusOr<std::string> FormatTemplateDate(const std::string& date, absl::string_view format) {
  if (date.empty()) {
    return TemplateError(
        "the template writes today's date (strftime_now), which would make other text on every day; set data.date to "
        "the day that it should write, such as \"2026-11-28\"");
  }
  absl::CivilDay day;
  if (!absl::ParseCivilTime(date, &day)) return TemplateError("the date ", Quoted(date), " is no day");
  std::tm tm = {.tm_mday = day.day(), .tm_mon = day.month() - 1, .tm_year = static_cast<int>(day.year()) - 1900};
  tm.tm_wday = (static_cast<int>(absl::GetWeekday(day)) + 1) % 7;  // absl begins a week with Monday, C with Sunday.
  tm.tm_yday = absl::GetYearDay(day) - 1;
  constexpr size_t kMostBytes = 1000;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    const bool bare = ++i < format.size() && format[i] == '-';  // %-d is %d without zeros.
    if (bare) ++i;
    const absl::string_view known = bare ? "dmyHIMSj" : "aAbBdeHIjmMpSUwWyYFT%";
    if (i >= format.size() || !absl::StrContains(known, format.substr(i, 1))) {
      return TemplateError("strftime_now: the format ", Quoted(format), " is not supported");
    }
  }
  if (format.size() > kMostBytes || absl::StrContains(format, absl::string_view("\0", 1))) {
    return TemplateError("strftime_now: the format is too long, or has a zero");
  }
  char buffer[16 * kMostBytes];
  const size_t size = std::strftime(buffer, sizeof(buffer), std::string(format).c_str(), &tm);
  return std::string(buffer, size);
}

}  // namespace shale
