#include "engine/plan/config/spec_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/fields.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;
using google::protobuf::io::Tokenizer;

// Walks the tokens of the text once. Keeps the open messages on a stack of its own, so that no text makes it recurse.
class TextChecker : google::protobuf::io::ErrorCollector {
 public:
  TextChecker(absl::string_view text, const Descriptor& root, const TextSource& source, SpecErrors* errors)
      : root_(root),
        source_(source),
        errors_(*errors),
        input_(text.data(), static_cast<int>(text.size())),
        tokenizer_(&input_, this) {
    // These are the settings that the protobuf text parser gives its tokenizer.
    tokenizer_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokenizer_.set_allow_f_after_float(true);
    tokenizer_.Next();
  }

  void Check(const Descriptor& type) {
    open_.push_back({&type, source_.prefix, ""});
    while (!stopped_) {
      if (AtEnd()) {
        if (open_.size() > 1) Stop(absl::StrCat("the text ends where \"", open_.back().closing, "\" is missing"));
        return;
      }
      if (open_.size() > 1 && At(open_.back().closing)) {
        CloseMessage();
      } else if (open_.size() == 1 && source_.one_field && fields_ > 0) {
        Stop(absl::StrCat("found ", Current(), " after the value; give one value"));
      } else {
        Field();
      }
    }
  }

 private:
  struct OpenMessage {
    const Descriptor* type;
    std::string path;
    std::string closing;  // The token that ends the message.
    std::set<const FieldDescriptor*> fields;
    std::set<const OneofDescriptor*> oneofs;
  };

  // Receives the errors of the tokenizer, such as a string without an end or a character that belongs to no token.
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    const bool has_unit = absl::StartsWith(message, "Need space between number and identifier");
    if (!stopped_) {
      errors_.AddAt(
          Location(line, column), open_.empty() ? "" : open_.back().path,
          has_unit ? "found letters behind a number; write numbers without units, 10 MiB as 10485760" : message);
    }
    stopped_ = true;
  }

  bool At(absl::string_view token) { return tokenizer_.current().text == token && !AtType(Tokenizer::TYPE_STRING); }
  bool AtType(Tokenizer::TokenType type) { return tokenizer_.current().type == type; }
  bool AtEnd() { return AtType(Tokenizer::TYPE_END); }
  std::string Current() { return AtEnd() ? "the end" : Quoted(tokenizer_.current().text); }

  bool Skip(absl::string_view token) {
    if (!At(token)) return false;
    tokenizer_.Next();
    return true;
  }

  SpecLocation Location(int line, int column) const {
    return source_.has_lines ? SpecLocation{source_.name, line + 1, column + 1} : SpecLocation{source_.name};
  }
  SpecLocation Here() { return Location(tokenizer_.current().line, tokenizer_.current().column); }

  // Reports a syntax error at the current token and ends the check.
  void Stop(absl::string_view message) {
    if (!stopped_) errors_.AddAt(Here(), open_.back().path, message);
    stopped_ = true;
  }

  void Field() {
    if (!AtType(Tokenizer::TYPE_IDENTIFIER)) return Stop(absl::StrCat("found ", Current(), "; expected a field name"));
    const std::string name = tokenizer_.current().text;
    const SpecLocation place = Here();
    OpenMessage& message = open_.back();
    const std::string path = message.path.empty() ? name : absl::StrCat(message.path, ".", name);
    if (open_.size() == 1) ++fields_;
    tokenizer_.Next();
    const FieldDescriptor* field = message.type->FindFieldByName(name);
    if (field == nullptr) {
      errors_.AddAt(place, path, UnknownFieldMessage(root_, *message.type, name));
      return SkipUnknown();
    }
    NoteTwice(message, *field, path, place);
    if (!field->is_repeated()) errors_.Locate(path, place);
    const bool is_message = field->message_type() != nullptr;
    if (!Skip(":") && !is_message) return Stop(absl::StrCat("found ", Current(), " after ", path, "; expected \":\""));
    if (is_message && field->is_repeated()) {
      if (At("[")) return Stop(absl::StrCat("found \"[\" after ", path, "; write ", name, " { ... } once for each"));
      return OpenBody(*field, NextItem(path, place));
    } else if (field->is_repeated() && Skip("[")) {
      List(*field, path, place);
    } else if (is_message) {
      return OpenBody(*field, path);  // CloseMessage skips the separator.
    } else {
      Value(*field, path, place);
    }
    SkipSeparator();
  }

  void NoteTwice(OpenMessage& message, const FieldDescriptor& field, const std::string& path,
                 const SpecLocation& place) {
    if (field.is_repeated()) return;
    if (!message.fields.insert(&field).second) {
      errors_.AddAt(place, path, "given twice; keep one");
    } else if (const OneofDescriptor* oneof = field.real_containing_oneof()) {
      if (!message.oneofs.insert(oneof).second) {
        errors_.AddAt(place, path, absl::StrCat("given beside another ", oneof->name(), "; keep one"));
      }
    }
  }

  void OpenBody(const FieldDescriptor& field, const std::string& path) {
    const bool angle = At("<");
    if (!angle && !At("{")) return Stop(absl::StrCat("found ", Current(), " after ", path, "; expected \"{\""));
    tokenizer_.Next();
    open_.push_back({field.message_type(), path, angle ? ">" : "}"});
  }

  void CloseMessage() {
    open_.pop_back();
    tokenizer_.Next();
    SkipSeparator();
  }

  void SkipSeparator() {
    if (!Skip(",")) Skip(";");
  }

  // Returns the path of the next element of the list at `path`.
  std::string NextItem(const std::string& path, const SpecLocation& place) {
    const std::string item = absl::StrCat(path, "[", items_[path]++, "]");
    errors_.Locate(item, place);
    return item;
  }

  // Checks the values of a list up to its "]". They are single tokens.
  void List(const FieldDescriptor& field, const std::string& path, const SpecLocation& place) {
    if (Skip("]")) return;
    do {
      Value(field, path, place);
      if (stopped_) return;
    } while (Skip(","));
    if (!Skip("]")) Stop(absl::StrCat("found ", Current(), " in the list ", path, "; expected \",\" or \"]\""));
  }

  void Value(const FieldDescriptor& field, std::string path, const SpecLocation& place) {
    if (field.is_repeated()) path = NextItem(path, place);
    const bool negative = Skip("-");
    if (AtEnd() || AtType(Tokenizer::TYPE_SYMBOL)) {
      return Stop(absl::StrCat("found ", Current(), " after ", path, ":; expected a value"));
    }
    const Tokenizer::Token token = tokenizer_.current();
    const std::string found = absl::StrCat(negative ? "-" : "", token.text);
    tokenizer_.Next();
    while (token.type == Tokenizer::TYPE_STRING && AtType(Tokenizer::TYPE_STRING)) tokenizer_.Next();
    const std::string wrong = ValueError(field, token, negative, found);
    if (!wrong.empty()) errors_.AddAt(place, path, wrong);
  }

  // Returns what is wrong with a value, or "" if nothing is.
  std::string ValueError(const FieldDescriptor& field, const Tokenizer::Token& token, bool negative,
                         const std::string& found) {
    const bool is_integer = token.type == Tokenizer::TYPE_INTEGER;
    const bool is_name = token.type == Tokenizer::TYPE_IDENTIFIER && !negative;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_ENUM:
        if (is_name && FindEnumValue(*field.enum_type(), token.text) != nullptr) return "";
        return EnumMessage(*field.enum_type(), found);
      case FieldDescriptor::CPPTYPE_BOOL:
        if (is_name && (token.text == "true" || token.text == "false")) return "";
        return absl::StrCat("found ", Quoted(found), "; allowed: true, false");
      case FieldDescriptor::CPPTYPE_STRING:
        if (token.type == Tokenizer::TYPE_STRING && !negative) return "";
        return absl::StrCat("found ", Quoted(found), "; expected text in quotes");
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (token.type == Tokenizer::TYPE_FLOAT || IsNonFinite(token)) return "";
        if (is_integer && IsDecimal(token.text)) return "";
        return absl::StrCat("found ", Quoted(found), "; expected a number, ", RangeText(field));
      default: {
        const bool is_signed = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
        const uint64_t max = is_signed ? std::numeric_limits<int64_t>::max() : std::numeric_limits<uint64_t>::max();
        uint64_t value;
        if (is_integer && IsDecimal(token.text) && (is_signed || !negative) &&
            Tokenizer::ParseInteger(token.text, max, &value)) {
          return "";
        }
        return absl::StrCat("found ", Quoted(found), "; expected a whole number, ", RangeText(field));
      }
    }
  }

  // Returns false for hexadecimal and octal numbers, because 010 would mean 8.
  static bool IsDecimal(const std::string& text) { return text.size() == 1 || text[0] != '0'; }

  // Returns whether a token is nan or inf. These pass here, because CheckFields refuses them, also in a binary spec.
  static bool IsNonFinite(const Tokenizer::Token& token) {
    return token.type == Tokenizer::TYPE_IDENTIFIER &&
           (absl::EqualsIgnoreCase(token.text, "nan") || absl::EqualsIgnoreCase(token.text, "inf") ||
            absl::EqualsIgnoreCase(token.text, "infinity"));
  }

  // Skips the value of a field that does not exist: everything in a pair of brackets, or one value.
  void SkipUnknown() {
    if (!Skip(":") && !At("{") && !At("<")) return;
    int depth = 0;
    while (!AtEnd() && !stopped_) {
      if (At("{") || At("<") || At("[")) ++depth;
      if (At("}") || At(">") || At("]")) --depth;
      if (depth < 0) return;  // There is no value, because the bracket closes the enclosing message.
      const bool minus = At("-");
      const bool text = AtType(Tokenizer::TYPE_STRING);
      tokenizer_.Next();
      if (depth == 0 && !minus && !(text && AtType(Tokenizer::TYPE_STRING))) break;
    }
    SkipSeparator();
  }

  const Descriptor& root_;
  const TextSource& source_;
  SpecErrors& errors_;
  google::protobuf::io::ArrayInputStream input_;
  Tokenizer tokenizer_;
  std::vector<OpenMessage> open_;
  std::map<std::string, int> items_;  // Number of values so far, by path of the list field.
  int fields_ = 0;                    // Number of fields so far at the top level.
  bool stopped_ = false;
};

using google::protobuf::Message;

SpecLocation Set() { return {"--set"}; }

// Returns the fields that lead from the root to `path`, the field at `path` last. If there is no such field, reports an
// error and returns an empty list.
std::vector<const FieldDescriptor*> FindFields(const std::string& path, const Descriptor& root, SpecErrors* errors) {
  const Descriptor* type = &root;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  std::vector<const FieldDescriptor*> fields;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string so_far = absl::StrJoin(names.begin(), names.begin() + i + 1, ".");
    if (type == nullptr) {
      errors->AddAt(Set(), so_far,
                    absl::StrCat(names[i - 1], " is a value and has no fields; leave .", names[i], " out"));
      return {};
    }
    const FieldDescriptor* field = type->FindFieldByName(names[i]);
    if (field == nullptr) {
      errors->AddAt(Set(), so_far, UnknownFieldMessage(root, *type, names[i]));
      return {};
    }
    fields.push_back(field);
    type = field->message_type();
    if (type == nullptr || !field->is_repeated() || i + 1 == names.size()) continue;
    errors->AddAt(Set(), so_far,
                  absl::StrCat("is a list of messages; add one, as in ", so_far,
                               "={...}, or clear the "
                               "list with ",
                               so_far, "="));
    return {};
  }
  return fields;
}

// Clears the last of `fields`. Does not create missing messages on the way, because that could choose another kind of
// model.
void Clear(const std::vector<const FieldDescriptor*>& fields, Message* message) {
  for (const FieldDescriptor* field : fields) {
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    if (field == fields.back()) return reflection.ClearField(message, field);
    if (!reflection.HasField(*message, field)) return;
    message = reflection.MutableMessage(message, field);
  }
}

// Returns the text of a string field with quotes. Adds them if `text` has none.
std::string WithQuotes(absl::string_view text) {
  const bool quoted = absl::StartsWith(text, "\"") || absl::StartsWith(text, "'");
  return quoted ? std::string(text) : absl::StrCat("\"", absl::CHexEscape(text), "\"");
}

// Returns the value in textproto syntax. If `is_list` is true, `value` is a list in brackets.
std::string ValueText(const FieldDescriptor& field, absl::string_view value, bool is_list) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) return std::string(value);
  if (!is_list) return WithQuotes(value);
  std::vector<std::string> items;
  const absl::string_view inside = absl::StripAsciiWhitespace(value.substr(1, value.size() - 2));
  if (!inside.empty()) {
    for (absl::string_view item : absl::StrSplit(inside, ',')) {
      items.push_back(WithQuotes(absl::StripAsciiWhitespace(item)));
    }
  }
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

// Returns the value of a field that counts bytes: "10485760" for "10MiB". Returns a value without a unit as it is.
// Reports a unit that is none of these in `errors`, and bytes that are no whole number.
std::string InBytes(const std::string& path, absl::string_view value, SpecErrors* errors) {
  if (!std::isdigit(static_cast<unsigned char>(value.front())) ||
      std::none_of(value.begin(), value.end(), absl::ascii_isalpha)) {
    return std::string(value);
  }
  double unit = 1;
  for (absl::string_view name : {"KiB", "MiB", "GiB", "TiB"}) {
    unit *= 1024;
    double number = 0;
    if (!absl::EndsWith(value, name) || !absl::SimpleAtod(value.substr(0, value.size() - name.size()), &number))
      continue;
    const double bytes = number * unit;
    if (bytes < 0x1p63 && bytes == std::floor(bytes)) return absl::StrCat(static_cast<int64_t>(bytes));
  }
  errors->AddAt(
      Set(), path,
      absl::StrCat("found ", Quoted(value), "; expected a whole number of bytes, as in 10485760, 10MiB or 1.5GiB"));
  return "0";
}

void ApplyOverride(const std::string& text, proto::Job* job, SpecErrors* errors) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::string path(absl::StripAsciiWhitespace(parts.first));
  const absl::string_view value = absl::StripAsciiWhitespace(parts.second);
  if (path.empty() || !absl::StrContains(text, '=')) {
    errors->AddAt(Set(), "", absl::StrCat("found ", Quoted(text), "; expected path=value, as in batch.micro_batch=2"));
    return;
  }
  if (FindNonText(text) != absl::string_view::npos) {
    errors->AddAt(Set(), "", absl::StrCat("found ", Quoted(text), "; expected UTF-8 text without control characters"));
    return;
  }
  const std::vector<const FieldDescriptor*> fields = FindFields(path, *job->GetDescriptor(), errors);
  if (fields.empty()) return;
  if (value.empty()) return Clear(fields, job);
  const FieldDescriptor& field = *fields.back();
  const bool is_list = field.is_repeated() && absl::StartsWith(value, "[") && absl::EndsWith(value, "]");
  const std::string in_bytes = FactsOf(field).unit() == "bytes" ? InBytes(path, value, errors) : std::string(value);
  const std::string field_text =
      absl::StrCat(field.name(), field.message_type() != nullptr ? " " : ": ", ValueText(field, in_bytes, is_list));
  const std::string parent_path = path.substr(0, path.size() - std::min(path.size(), field.name().size() + 1));
  const TextSource source = {Set().source, /*has_lines=*/false, parent_path, /*one_field=*/true};
  const size_t errors_before = errors->size();
  CheckSpecText(field_text, *job->GetDescriptor(), *field.containing_type(), source, errors);
  if (errors->size() > errors_before) return;
  if (is_list) Clear(fields, job);
  Message* parent = job;
  for (size_t i = 0; i + 1 < fields.size(); ++i) parent = parent->GetReflection()->MutableMessage(parent, fields[i]);
  if (!google::protobuf::TextFormat::MergeFromString(field_text, parent)) {
    errors->AddAt(Set(), path,
                  absl::StrCat("found ", Quoted(value), ", which cannot be read; write the value as in a job file"));
  }
}

}  // namespace

void CheckSpecText(absl::string_view text, const Descriptor& root, const Descriptor& type, const TextSource& source,
                   SpecErrors* errors) {
  TextChecker(text, root, source, errors).Check(type);
}

void ApplyOverrides(absl::Span<const std::string> overrides, proto::Job* job, SpecErrors* errors) {
  for (const std::string& text : overrides) ApplyOverride(text, job, errors);
}

}  // namespace shale
