#include "engine/config/overrides.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/config/names.h"
#include "engine/config/text_check.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "google/protobuf/text_format.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
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
      errors->AddAt(Set(), so_far, absl::StrCat(names[i - 1], " is a value and has no fields"));
      return {};
    }
    const FieldDescriptor* field = type->FindFieldByName(names[i]);
    if (field == nullptr) {
      errors->AddAt(Set(), so_far, UnknownFieldMessage(root, *type, names[i]));
      return {};
    }
    fields.push_back(field);
    type = field->message_type();
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
  const std::string field_text =
      absl::StrCat(field.name(), field.message_type() != nullptr ? " " : ": ", ValueText(field, value, is_list));
  const std::string parent_path = path.substr(0, path.size() - std::min(path.size(), field.name().size() + 1));
  const TextSource source = {Set().source, /*has_lines=*/false, parent_path, /*one_field=*/true};
  const size_t errors_before = errors->size();
  CheckSpecText(field_text, *job->GetDescriptor(), *field.containing_type(), source, errors);
  if (errors->size() > errors_before) return;
  if (is_list) Clear(fields, job);
  Message* parent = job;
  for (size_t i = 0; i + 1 < fields.size(); ++i) parent = parent->GetReflection()->MutableMessage(parent, fields[i]);
  if (!google::protobuf::TextFormat::MergeFromString(field_text, parent)) {
    errors->AddAt(Set(), path, absl::StrCat("found ", Quoted(value), ", which cannot be read"));
  }
}

}  // namespace

void ApplyOverrides(absl::Span<const std::string> overrides, proto::Job* job, SpecErrors* errors) {
  for (const std::string& text : overrides) ApplyOverride(text, job, errors);
}

}  // namespace shale
