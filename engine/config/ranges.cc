#include "engine/config/ranges.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/config/fields.h"
#include "engine/config/names.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "google/protobuf/unknown_field_set.h"
#include "kernels/check.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class FieldChecker {
 public:
  explicit FieldChecker(SpecErrors* errors) : errors_(*errors) {}

  void Check(Message* message, const std::string& path) {
    const Descriptor& type = *message->GetDescriptor();
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.GetUnknownFields(*message).empty()) {
      const int number = reflection.GetUnknownFields(*message).field(0).number();
      errors_.Add(path, absl::StrCat("holds field number ", number, ", which ", type.name(),
                                     " does not have; was it written by another version?"));
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const std::string field_path = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE: CheckMessage(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_INT64: CheckInt(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_DOUBLE: CheckReal(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_ENUM: CheckEnum(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_STRING: CheckStrings(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_BOOL: break;
        case FieldDescriptor::CPPTYPE_UINT64: break;  // A seed may have every value.
        default: SHALE_CHECK(false) << field_path << " has a type that no check covers";
      }
    }
  }

 private:
  static const proto::FieldFacts& FactsWithRange(const FieldDescriptor& field) {
    const proto::FieldFacts& facts = FactsOf(field);
    SHALE_CHECK(facts.has_min() && facts.has_max()) << field.full_name() << " has no range";
    return facts;
  }

  // Checks a section (a message at the top level of Job) even if it is left out, because it may have required fields.
  // Checks a deeper message, which is a kind of model or a feature, only if it is given.
  void CheckMessage(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    const bool is_section = path.find('.') == std::string::npos;
    if (is_section || reflection.HasField(*message, &field)) Check(reflection.MutableMessage(message, &field), path);
  }

  void CheckInt(Message* message, const FieldDescriptor& field, const std::string& path) {
    const proto::FieldFacts& facts = FactsWithRange(field);
    const int64_t min = static_cast<int64_t>(facts.min()), max = static_cast<int64_t>(facts.max());
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.HasField(*message, &field)) {
      if (!facts.required()) return;
      errors_.Add(path, absl::StrCat("missing, and there is no default; allowed: ", RangeText(field)));
      return reflection.SetInt64(message, &field, min);
    }
    const int64_t value = reflection.GetInt64(*message, &field);
    if (min <= value && value <= max) return;
    errors_.Add(path, absl::StrCat("found ", value, "; allowed: ", RangeText(field)));
    reflection.SetInt64(message, &field, std::clamp(value, min, max));
  }

  void CheckReal(Message* message, const FieldDescriptor& field, const std::string& path) {
    const proto::FieldFacts& facts = FactsWithRange(field);
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.HasField(*message, &field)) return;
    const double value = reflection.GetDouble(*message, &field);
    if (facts.min() <= value && value <= facts.max()) return;  // The condition is false for NaN.
    errors_.Add(path, absl::StrCat("found ", NumberText(value), "; allowed: ", RangeText(field)));
    reflection.SetDouble(message, &field, facts.max());
  }

  void CheckEnum(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    if (field.is_repeated()) {
      // Value 0 stands for a field that is left out. An element of a list cannot be left out, so 0 is refused.
      for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
        const int number = reflection.GetRepeatedEnumValue(*message, &field, i);
        if (number != 0 && field.enum_type()->FindValueByNumber(number) != nullptr) continue;
        errors_.Add(absl::StrCat(path, "[", i, "]"), EnumMessage(*field.enum_type(), absl::StrCat(number)));
      }
      return;
    }
    const int number = reflection.GetEnumValue(*message, &field);
    if (field.enum_type()->FindValueByNumber(number) != nullptr) return;
    errors_.Add(path, EnumMessage(*field.enum_type(), absl::StrCat(number)));
    reflection.ClearField(message, &field);
  }

  void CheckStrings(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    if (!field.is_repeated()) return CheckString(reflection.GetString(*message, &field), path);
    for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
      CheckString(reflection.GetRepeatedString(*message, &field, i), absl::StrCat(path, "[", i, "]"));
    }
  }

  void CheckString(const std::string& value, const std::string& path) {
    if (IsLineOfPath(value)) return;
    errors_.Add(path, absl::StrCat("found ", Quoted(value), "; allowed: one line of UTF-8 text"));
  }

  SpecErrors& errors_;
};

}  // namespace

void CheckFields(proto::Job* job, SpecErrors* errors) { FieldChecker(errors).Check(job, ""); }

}  // namespace shale
