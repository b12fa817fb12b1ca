// Formats the names of fields and enum values for error messages.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace shale {

// Returns `found "FULL"; allowed: DDP, FULL_SHARD; did you mean FULL_SHARD?`
std::string EnumMessage(const google::protobuf::EnumDescriptor& type, absl::string_view found);

// Returns `no such field; allowed: ...; did you mean ...?` for a field `name` that does not exist in `type`, a message
// inside `root`. If no field of `type` is close but `name` exists elsewhere under `root`, suggests its path.
std::string UnknownFieldMessage(const google::protobuf::Descriptor& root, const google::protobuf::Descriptor& type,
                                absl::string_view name);

// Returns the enum value of that name, or null if there is none. Also returns null for value 0, because it means "left
// out" and a spec may not name it.
const google::protobuf::EnumValueDescriptor* FindEnumValue(const google::protobuf::EnumDescriptor& type,
                                                           const std::string& name);

}  // namespace shale
