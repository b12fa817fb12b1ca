#include "engine/config/conditions.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/config/fields.h"
#include "google/protobuf/message.h"
#include "kernels/check.h"

namespace shale {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A field, and the message of a job that has it.
struct Place {
  const Message* message;
  const FieldDescriptor* field;
};

// Returns the place of the field at `path`, which exists.
Place FindPlace(const Message& job, absl::string_view path) {
  Place place = {&job, nullptr};
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (place.field != nullptr)
      place.message = &place.message->GetReflection()->GetMessage(*place.message, place.field);
    place.field = place.message->GetDescriptor()->FindFieldByName(std::string(name));
    SHALE_CHECK(place.field != nullptr) << "a condition names " << path << ", which no job has";
  }
  return place;
}

bool Holds(const proto::Condition& condition, const proto::Job& resolved) {
  const auto [message, field] = FindPlace(resolved, condition.field());
  const std::string value = ValueText(*message, *field);
  if (condition.values().empty()) return Gives(*message, *field) && value != FactsOf(*field).default_();
  return std::find(condition.values().begin(), condition.values().end(), value) != condition.values().end();
}

// Returns what a job is told that breaks the condition.
std::string Refusal(const proto::Condition& condition, const proto::Job& resolved) {
  const auto [message, field] = FindPlace(resolved, condition.field());
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
    if (field->message_type() != nullptr) {
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

void CheckConditions(const proto::Job& spec, const proto::Job& resolved, SpecErrors* errors) {
  const Message& given = spec;
  ForEachGiven(given, "", [&](const Message& message, const FieldDescriptor& field, const std::string& path) {
    const proto::FieldFacts& facts = FactsOf(field);
    if (facts.default_goes_with_all() && ValueText(message, field) == facts.default_()) return;
    for (const proto::Condition& condition : facts.only_with()) {
      if (Holds(condition, resolved)) continue;
      std::vector<std::string> paths = {field.is_repeated() ? path + "[0]" : path, condition.field()};
      if (!condition.also().empty()) paths.push_back(condition.also());
      return errors->AddRule(paths, Refusal(condition, resolved));
    }
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
