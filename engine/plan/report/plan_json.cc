#include <map>
#include <string>

#include "engine/api/plan_text.h"
#include "engine/plan/report/plan_proto.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json ToJson(const Message& message);

Json SingleJson(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return values.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64: return values.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return values.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL: return values.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM: return values.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING: return values.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE: return ToJson(values.GetMessage(message, &field));
    default: SHALE_CHECK(false) << field.full_name() << " has a type that plan.proto does not use";
  }
  return {};
}

// Returns the object of a map from strings to int64, ordered by key.
Json MapJson(const Message& message, const FieldDescriptor& field) {
  std::map<std::string, int64_t> entries;
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < values.FieldSize(message, &field); ++i) {
    const Message& entry = values.GetRepeatedMessage(message, &field, i);
    const google::protobuf::Descriptor& type = *entry.GetDescriptor();
    entries[entry.GetReflection()->GetString(entry, type.map_key())] =
        entry.GetReflection()->GetInt64(entry, type.map_value());
  }
  Json json = Json::object();
  for (const auto& [key, value] : entries) json[key] = value;
  return json;
}

Json ListJson(const Message& message, const FieldDescriptor& field) {
  Json json = Json::array();
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < values.FieldSize(message, &field); ++i) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: json.push_back(values.GetRepeatedInt32(message, &field, i)); break;
      case FieldDescriptor::CPPTYPE_STRING: json.push_back(values.GetRepeatedString(message, &field, i)); break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        json.push_back(ToJson(values.GetRepeatedMessage(message, &field, i)));
        break;
      default: SHALE_CHECK(false) << field.full_name() << " has a type that plan.proto does not use";
    }
  }
  return json;
}

Json ToJson(const Message& message) {
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    Json& value = json[field.name()];
    if (field.is_map()) {
      value = MapJson(message, field);
    } else if (field.is_repeated()) {
      value = ListJson(message, field);
    } else if (!field.has_presence() || message.GetReflection()->HasField(message, &field)) {
      value = SingleJson(message, field);
    }
  }
  return json;
}

std::string JsonText(const proto::Plan& plan, PlanDetail detail) {
  Json json = ToJson(plan);
  if (detail < PlanDetail::kBuffers) {
    json.erase("buffers");
    json.erase("loops");
  }
  if (detail < PlanDetail::kInstructions) json.erase("instructions");
  // Replaces bytes that are not UTF-8. By default dump() would throw.
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string PlanJson(const Admission& admission, PlanDetail detail, const PlanSeconds& seconds) {
  return JsonText(PlanProto(admission, detail, seconds), detail);
}

std::string PlanJson(const Job& job, const JobPlan& plan, PlanDetail detail) {
  return JsonText(PlanProto(job, plan, detail), detail);
}

}  // namespace shale
