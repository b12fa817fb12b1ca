#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "google/protobuf/message.h"
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
    if (field.is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
        Check(reflection.MutableRepeatedMessage(message, &field, i), absl::StrCat(path, "[", i, "]"));
      }
      return;
    }
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
    if (facts.or_zero() && value == 0) return;
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

// A field, and the message of a job that has it.
struct LocatedField {
  const Message* message;
  const FieldDescriptor* field;
};

// Finds the field at `path`, which exists.
LocatedField LocateField(const Message& job, absl::string_view path) {
  LocatedField found = {&job, nullptr};
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (found.field != nullptr)
      found.message = &found.message->GetReflection()->GetMessage(*found.message, found.field);
    found.field = found.message->GetDescriptor()->FindFieldByName(std::string(name));
    SHALE_CHECK(found.field != nullptr) << "a condition names " << path << ", which no job has";
  }
  return found;
}

bool Holds(const proto::Condition& condition, const proto::Job& resolved) {
  const auto [message, field] = LocateField(resolved, condition.field());
  const std::string value = ValueText(*message, *field);
  if (condition.values().empty()) return Gives(*message, *field) && value != FactsOf(*field).default_();
  return std::find(condition.values().begin(), condition.values().end(), value) != condition.values().end();
}

// Returns what a job is told that breaks the condition.
std::string Refusal(const proto::Condition& condition, const proto::Job& resolved) {
  const auto [message, field] = LocateField(resolved, condition.field());
  const std::string values = absl::StrJoin(condition.values(), " or ");
  const std::string& own = condition.refusal();
  const std::string& shared = FactsOf(*field).refusal();
  if (own.empty() && shared.empty()) {
    return absl::StrCat("only ", field->name(), " ", values, " reads it; choose ",
                        condition.values_size() > 1 ? "one" : "that", ", or leave it out");
  }
  return absl::StrReplaceAll(own.empty() ? shared : own,
                             {{"$found", ValueText(*message, *field)}, {"$values", values}});
}

// Calls use(message, field, path) for each field that `message` gives and for those inside of it. `use` may clear the
// field.
template <typename MessageType, typename Use>
void ForEachGiven(MessageType& message, const std::string& prefix, const Use& use) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = absl::StrCat(prefix, field->name());
    // Fields in lists of messages have no conditions: C++ checks what they go with (rules.cc).
    if (field->message_type() != nullptr && !field->is_repeated()) {
      if constexpr (std::is_const_v<MessageType>) {
        ForEachGiven(message.GetReflection()->GetMessage(message, field), path + ".", use);
      } else {
        ForEachGiven(*message.GetReflection()->MutableMessage(&message, field), path + ".", use);
      }
    }
    use(message, *field, path);
  }
}

}  // namespace

void CheckFields(proto::Job* job, SpecErrors* errors) { FieldChecker(errors).Check(job, ""); }

void CheckConditions(const proto::Job& spec, const proto::Job& resolved, SpecErrors* errors) {
  const Message& given = spec;
  ForEachGiven(given, "", [&](const Message& message, const FieldDescriptor& field, const std::string& path) {
    const proto::FieldFacts& facts = FactsOf(field);
    const std::string asks_nothing = facts.default_().empty() ? "false" : facts.default_();
    if (facts.default_goes_with_all() && ValueText(message, field) == asks_nothing) return;
    const std::string given_path = field.is_repeated() ? path + "[0]" : path;
    bool has_effect = true;
    for (const proto::Condition& condition : facts.only_with()) {
      if (Holds(condition, resolved)) continue;
      has_effect = false;
      std::vector<std::string> paths = {given_path, condition.field()};
      if (!condition.also().empty()) paths.push_back(condition.also());
      errors->AddRuleAboutFirst(paths, Refusal(condition, resolved));
    }
    // What is left out in the end breaks no other rule.
    if (!has_effect) errors->MarkFaulty(given_path);
  });
}

void ClearWithoutEffect(proto::Job* resolved) {
  const proto::Job all = *resolved;
  ForEachGiven<Message>(*resolved, "", [&](Message& message, const FieldDescriptor& field, const std::string&) {
    for (const proto::Condition& condition : FactsOf(field).only_with()) {
      if (condition.still_printed() || Holds(condition, all)) continue;
      return message.GetReflection()->ClearField(&message, &field);
    }
  });
}

}  // namespace shale
