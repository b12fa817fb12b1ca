#include "engine/tokenize/template_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;

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
