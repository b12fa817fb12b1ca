#include "engine/config/fields.h"

#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/job.pb.h"

namespace shale {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
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
    case FieldDescriptor::CPPTYPE_DOUBLE: return absl::StrCat(NumberText(facts.min()), " to ", NumberText(facts.max()));
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

}  // namespace shale
