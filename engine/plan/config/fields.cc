#include "engine/plan/config/fields.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/api/job.h"
#include "engine/plan/config/errors.h"
#include "engine/strings/printing.h"
#include "proto/job.pb.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

constexpr size_t kNameColumns = 30;

// Returns whether a job file may have the field. Only records of runs hold a custom model.
bool IsForUsers(const FieldDescriptor& field) {
  return field.message_type() == nullptr || field.message_type() != proto::CustomModelSpec::descriptor();
}

// Returns the first sentence of the text.
std::string FirstSentence(absl::string_view text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    // A dot inside of a name ("files of llm.c the token") is followed by no capital letter.
    if (text[i] == '.' && text[i + 1] == ' ' && (absl::ascii_isupper(text[i + 2]) || text[i + 2] == '`')) {
      return std::string(text.substr(0, i + 1));
    }
  }
  return std::string(text);
}

// Returns the number in the form that people read: 1000, 2^40, 2^31 - 1, 1e12, 1e-6.
std::string ReadableNumber(double value) {
  constexpr double kLong = 1 << 20;
  int exponent;
  if (value < kLong && value == std::floor(value)) return absl::StrCat(static_cast<int64_t>(value));
  if (value >= kLong && std::frexp(value, &exponent) == 0.5) return absl::StrCat("2^", exponent - 1);
  if (value >= kLong && std::frexp(value + 1, &exponent) == 0.5) return absl::StrCat("2^", exponent - 1, " - 1");
  return absl::StrReplaceAll(NumberText(value), {{"e+", "e"}, {"e-0", "e-"}});
}

// Returns "A", "A or B" or "A, B or C".
std::string Either(const google::protobuf::RepeatedPtrField<std::string>& values) {
  if (values.size() < 2) return absl::StrJoin(values, "");
  return absl::StrCat(absl::StrJoin(values.begin(), values.end() - 1, ", "), " or ", *values.rbegin());
}

std::vector<std::string> Values(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(type.value(i)->name());
  }
  return names;
}

// Returns what the field may hold: "0 to 65536 units", "true or false", "DDP, ZERO1, ZERO2, FULL_SHARD".
std::string ValuesText(const FieldDescriptor& field) {
  const proto::FieldFacts& facts = FactsOf(field);
  const std::string list = field.is_repeated() ? "list of " : "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: return "a message";
    case FieldDescriptor::CPPTYPE_BOOL: return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return facts.is_path() ? "path" : field.is_repeated() ? "list of texts" : "text";
    case FieldDescriptor::CPPTYPE_ENUM: return list + absl::StrJoin(Values(*field.enum_type()), ", ");
    case FieldDescriptor::CPPTYPE_UINT64: return "0 to 2^64 - 1";
    default: break;
  }
  const bool whole = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  return absl::StrCat(facts.or_zero() ? "0, or " : "", ReadableNumber(facts.min()), " to ", ReadableNumber(facts.max()),
                      whole ? "" : ", a real number",
                      facts.unit().empty() ? ""
                      : whole              ? " "
                                           : ", in ",
                      facts.unit());
}

std::string DefaultText(const FieldDescriptor& field) {
  const proto::FieldFacts& facts = FactsOf(field);
  if (facts.required()) return "required";
  return facts.default_().empty() ? facts.defaults_to() : facts.default_();
}

// Returns "runtime.device CUDA", or "" for a field that goes with all others.
std::string ConditionsText(const FieldDescriptor& field) {
  std::vector<std::string> texts;
  for (const proto::Condition& condition : FactsOf(field).only_with()) {
    texts.push_back(absl::StrCat(condition.field(), condition.values().empty() ? "" : " ", Either(condition.values())));
  }
  return absl::StrJoin(texts, " and ");
}

// Returns all facts in a line: "1 to 2^20 sequences. Default: 1."
std::string FactsText(const FieldDescriptor& field) {
  std::string text = absl::StrCat(ValuesText(field), ".");
  text[0] = absl::ascii_toupper(text[0]);
  const std::string value = DefaultText(field), conditions = ConditionsText(field);
  if (value == "required") {
    absl::StrAppend(&text, " Required.");
  } else if (!value.empty()) {
    absl::StrAppend(&text, " Default: ", value, ".");
  }
  if (!conditions.empty()) absl::StrAppend(&text, " Only with ", conditions, ".");
  return text;
}

// Returns the comment of the message or enum that the field holds, or "" if it holds neither.
absl::string_view CommentOfType(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) return CommentOf(field.message_type()->full_name());
  return field.enum_type() != nullptr ? CommentOf(field.enum_type()->full_name()) : "";
}

// Returns the comment of the field, or that of its type if it has none.
absl::string_view CommentOfField(const FieldDescriptor& field) {
  const absl::string_view own = CommentOf(field.full_name());
  return own.empty() ? CommentOfType(field) : own;
}

void AppendRow(const std::string& name, absl::string_view text, size_t columns, std::string* out) {
  absl::StrAppend(out, "  ", name,
                  name.size() + 4 > kNameColumns ? "\n" + std::string(kNameColumns, ' ')
                                                 : std::string(kNameColumns - 2 - name.size(), ' '),
                  Wrap(text, columns, kNameColumns), "\n");
}

// Explains a message: its comment, and a row for each of its fields.
std::string MessageHelp(const std::string& path, const Descriptor& type, absl::string_view comment, size_t columns) {
  std::string text = absl::StrCat(Wrap(absl::StrCat(path, ": ", comment), columns), "\n\n");
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!IsForUsers(field)) continue;
    const std::string inside = absl::StrCat(path == "job" ? "" : path + ".", field.name());
    const std::string facts =
        field.message_type() != nullptr ? absl::StrCat("See --help=", inside, ".") : FactsText(field);
    AppendRow(field.name(), absl::StrCat(FirstSentence(CommentOfField(field)), " ", facts), columns, &text);
  }
  return text;
}

// Explains a field that holds a value, and each value of an enum.
std::string ValueHelp(const std::string& path, const FieldDescriptor& field, size_t columns) {
  const absl::string_view comment = CommentOfField(field), of_type = CommentOfType(field);
  std::string text =
      absl::StrCat(Wrap(absl::StrCat(path, ": ", comment), columns), "\n\n", Wrap(FactsText(field), columns), "\n");
  if (field.enum_type() == nullptr) return text;
  absl::StrAppend(&text, "\n", of_type.empty() || of_type == comment ? "" : Wrap(of_type, columns) + "\n\n");
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const auto& value = *field.enum_type()->value(i);
    if (value.number() != 0) AppendRow(value.name(), CommentOf(value.full_name()), columns, &text);
  }
  return text;
}

// Returns the text as a cell of a table in Markdown. Leaves what stands between backticks as it is.
std::string Cell(absl::string_view text) {
  std::string cell;
  bool is_code = false;
  for (const char c : text) {
    is_code ^= c == '`';
    const bool escaped = c == '|' || (!is_code && (c == '*' || c == '<'));
    absl::StrAppend(&cell, escaped ? "\\" : "", std::string(1, c));
  }
  return cell;
}

constexpr absl::string_view kJobPage = "fields.md", kRunPage = "fields_of_runs.md";

// Returns the page that has a section and the sections in it: what is trained on one, and how it runs on the other.
absl::string_view PageOf(absl::string_view path) {
  const absl::string_view section = path.substr(0, path.find('.'));
  return section.empty() || section == "model" || section == "data" || section == "batch" ? kJobPage : kRunPage;
}

void AppendSection(const std::string& path, const Descriptor& type, absl::string_view comment,
                   std::map<std::string, std::string>& pages) {
  std::string* const page = &pages[std::string(PageOf(path))];
  absl::StrAppend(page, "\n## ", path.empty() ? "Name and sections" : path, "\n\n", path.empty() ? "" : Cell(comment),
                  path.empty() ? "" : "\n\n", "| field | what it is | values | default |\n|---|---|---|---|\n");
  std::vector<const FieldDescriptor*> messages;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!IsForUsers(field)) continue;
    const std::string inside = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
    std::string name = absl::StrCat("`", field.name(), "`"), values = Cell(ValuesText(field));
    if (field.message_type() != nullptr) {
      messages.push_back(&field);
      values = absl::StrCat("[", field.name(), "](", PageOf(inside) == PageOf(path) ? "" : PageOf(inside), "#",
                            absl::StrReplaceAll(inside, {{".", ""}}), ")");
    }
    const std::string conditions = ConditionsText(field);
    if (!conditions.empty()) absl::StrAppend(&values, "; only with ", Cell(conditions));
    absl::StrAppend(page, "| ", name, " | ", Cell(FirstSentence(CommentOfField(field))), " | ", values, " | ",
                    Cell(DefaultText(field)), " |\n");
  }
  for (const FieldDescriptor* field : messages) {
    AppendSection(path.empty() ? field->name() : absl::StrCat(path, ".", field->name()), *field->message_type(),
                  CommentOf(field->message_type()->full_name()), pages);
  }
}

}  // namespace

using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor* FindField(absl::string_view path) {
  const Descriptor* type = proto::Job::descriptor();
  const FieldDescriptor* field = nullptr;
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    field = type == nullptr ? nullptr : type->FindFieldByName(std::string(name));
    if (field == nullptr) return nullptr;
    type = field->message_type();
  }
  return field;
}

std::string RangeText(const FieldDescriptor& field) {
  const proto::FieldFacts& facts = FactsOf(field);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(static_cast<int64_t>(facts.min()), " to ", static_cast<int64_t>(facts.max()));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(facts.or_zero() ? "0, or " : "", NumberText(facts.min()), " to ", NumberText(facts.max()));
    default: return absl::StrCat("0 to ", std::numeric_limits<uint64_t>::max());
  }
}

std::string NumberText(double value) {
  for (int digits = 1; digits < 17; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string ValueText(const Message& message, const FieldDescriptor& field) {
  if (!Gives(message, field)) return FactsOf(field).default_();
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64: return absl::StrCat(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE: return NumberText(reflection.GetDouble(message, &field) + 0.0);  // Not -0.
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: return reflection.GetEnum(message, &field)->name();
    default: return reflection.GetString(message, &field);
  }
}

bool Gives(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0 : reflection.HasField(message, &field);
}

absl::StatusOr<std::string> FieldHelp(absl::string_view topic, size_t columns) {
  const Descriptor& root = *proto::Job::descriptor();
  const std::string path(absl::StripSuffix(topic, "."));
  if (path == "job")
    return MessageHelp(path, root, "A message with these fields; a section is a message, too.", columns);
  const Descriptor* type = &root;
  const FieldDescriptor* field = nullptr;
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (type == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", field->name(), " is a value and has no fields"));
    }
    field = type->FindFieldByName(std::string(name));
    if (field == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", UnknownFieldMessage(root, *type, name)));
    type = field->message_type();
  }
  if (type == nullptr) return ValueHelp(path, *field, columns);
  std::string comment(CommentOf(field->full_name()));
  const absl::string_view of_type = CommentOf(type->full_name());
  if (comment.empty() || of_type.empty()) {
    absl::StrAppend(&comment, of_type);
  } else {
    absl::StrAppend(&comment, " ", of_type);
  }
  return MessageHelp(path, *type, comment, columns);
}

std::map<std::string, std::string> FieldsPages() {
  constexpr absl::string_view kHow = R"(with the first sentence
about each. `plan --help=sharding` prints a section, and `plan --help=sharding.strategy` all
that there is to say of a field and of its values; `train` has the same. [Jobs](jobs.md) says
how a job is written. This page is printed from [proto/job.proto](../../proto/job.proto) and
the files in [proto/job](../../proto/job).
)";
  std::map<std::string, std::string> pages;
  pages[std::string(kJobPage)] =
      absl::StrCat("# Fields of a job\n\nThe sections of a job, and the fields that say what is trained on what, ",
                   kHow, "[Fields of runs](", kRunPage, ") has all others.\n");
  pages[std::string(kRunPage)] =
      absl::StrCat("# Fields of runs\n\nThe fields that say how a job is trained and what its run leaves behind, ",
                   kHow, "[Fields of a job](", kJobPage, ") has the list of sections, and model, data and batch.\n");
  AppendSection("", *proto::Job::descriptor(), "", pages);
  return pages;
}

}  // namespace shale
