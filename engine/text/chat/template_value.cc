#include "engine/text/chat/template_value.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/chat/template_operations.h"
#include "kernels/check.h"

namespace shale {
using Value = TemplateValue;

void TemplateText::Append(const TemplateText& more) {
  for (TextOrigin origin : more.origins) {
    origin.begin += bytes.size();
    origin.end += bytes.size();
    origins.push_back(origin);
  }
  bytes += more.bytes;
}

TemplateText TemplateText::Part(size_t begin, size_t end) const {
  TemplateText part = {bytes.substr(begin, end - begin), {}};
  for (TextOrigin origin : origins) {
    const size_t left = std::max(origin.begin, begin), right = std::min(origin.end, end);
    if (left >= right) continue;
    if (origin.as_it_is()) {
      origin.from += left - origin.begin;
      origin.to -= origin.end - right;
    } else if (left != origin.begin || right != origin.end) {
      continue;  // Half of an escape is nothing.
    }
    origin.begin = left - begin;
    origin.end = right - begin;
    part.origins.push_back(origin);
  }
  return part;
}

Value Value::LargeInteger(double value, absl::string_view digits) {
  Value made = Named(Kind::kFloat, {std::string(digits), {}});
  made.real = value;
  return made;
}

Value Value::Named(Kind kind, TemplateText text) {
  return {.kind = kind, .string = std::make_shared<const TemplateText>(std::move(text))};
}

Value Value::Of(List values, Form form) {
  Value all = {.kind = Kind::kList, .form = form, .depth = 1};
  for (const Value& value : values) {
    all.depth = std::max(all.depth, value.depth + 1);
    all.has_namespace |= value.has_namespace;
  }
  all.list = std::make_shared<List>(std::move(values));
  return all;
}

Value Value::Of(Dict values) {
  Value all = {.kind = Kind::kDict, .depth = 1};
  for (const auto& [name, value] : values) {
    all.depth = std::max(all.depth, value.depth + 1);
    all.has_namespace |= value.has_namespace;
  }
  all.dict = std::make_shared<Dict>(std::move(values));
  return all;
}

const char* Value::type() const {
  switch (kind) {
    case Kind::kUndefined: return "undefined";
    case Kind::kNone: return "none";
    case Kind::kBool: return "a boolean";
    case Kind::kInteger: return "an integer";
    case Kind::kFloat: return string != nullptr ? "an integer" : "a number with a fraction";
    case Kind::kString: return "a string";
    case Kind::kList:
      switch (form) {
        case Form::kList: return "a list";
        case Form::kTuple: return "a tuple";
        case Form::kRange: return "a range";
        case Form::kView: return "a view of a mapping";
        case Form::kGenerator: return "a generator";
      }
      return "";
    case Kind::kDict: return is_object() ? "an object" : "a mapping";
    case Kind::kFunction: return "a function";
  }
  return "";
}

bool Value::truth() const {
  switch (kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInteger: return number != 0;
    case Kind::kFloat: return real != 0;
    case Kind::kString: return !string->bytes.empty();
    case Kind::kList: return form == Form::kGenerator || !list->empty();
    case Kind::kDict: return is_object() || !dict->empty();
    case Kind::kFunction: return true;
  }
  return false;
}

const Value* Value::Find(absl::string_view name) const {
  if (kind != Kind::kDict) return nullptr;
  const auto found = std::find_if(dict->begin(), dict->end(), [&](const auto& item) { return item.first == name; });
  return found == dict->end() ? nullptr : &found->second;
}

absl::StatusOr<std::shared_ptr<const TemplateText>> Printed(const Value& value) {
  const auto plain = [](absl::string_view text) {
    return std::make_shared<const TemplateText>(TemplateText{std::string(text), {}});
  };
  switch (value.kind) {
    case Value::Kind::kUndefined: return plain("");
    case Value::Kind::kNone:
      if (value.number == 0) return plain("None");
      return TemplateError("it writes \"content\" that is null, as transformers would write \"None\"; give it a text");
    case Value::Kind::kBool: return plain(value.number != 0 ? "True" : "False");
    case Value::Kind::kInteger: return plain(absl::StrCat(value.number));
    case Value::Kind::kFloat: return value.string ? value.string : plain(PythonFloat(value.real));
    case Value::Kind::kString: return value.string;
    default: return TemplateError("to write ", value.type(), " as text is not supported");
  }
}

absl::StatusOr<bool> Equal(const Value& a, const Value& b, TemplateBudget& budget) {
  SHALE_RETURN_IF_ERROR(budget.Take(8));
  if (a.is_number() && b.is_number()) return a.number == b.number;
  const bool real = a.is(Value::Kind::kFloat) || b.is(Value::Kind::kFloat);
  if (real && (a.is_number() || a.is(Value::Kind::kFloat)) && (b.is_number() || b.is(Value::Kind::kFloat))) {
    return TemplateError("to compare numbers with a fraction is not supported");
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Value::Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      SHALE_RETURN_IF_ERROR(budget.Take(static_cast<double>(a.text().size())));
      return a.text() == b.text();
    case Value::Kind::kList:
      for (const Value* value : {&a, &b}) {
        if (value->form == Value::Form::kView || value->form == Value::Form::kGenerator) {
          return TemplateError("to compare ", value->type(), " is not supported");
        }
      }
      if (a.form != b.form || a.list->size() != b.list->size()) return false;
      for (size_t i = 0; i < a.list->size(); ++i) {
        SHALE_ASSIGN_OR_RETURN(const bool same, Equal((*a.list)[i], (*b.list)[i], budget));
        if (!same) return false;
      }
      return true;
    case Value::Kind::kDict:
      if (a.is_object() || b.is_object()) return a.dict == b.dict;  // An object equals itself alone.
      if (a.dict->size() != b.dict->size()) return false;
      for (const auto& [name, value] : *a.dict) {
        SHALE_RETURN_IF_ERROR(budget.Take(8 * static_cast<double>(b.dict->size())));
        const Value* found = b.Find(name);
        if (found == nullptr) return false;
        SHALE_ASSIGN_OR_RETURN(const bool same, Equal(value, *found, budget));
        if (!same) return false;
      }
      return true;
    case Value::Kind::kFunction: return a.text() == b.text();
    default: return true;
  }
}

}  // namespace shale
