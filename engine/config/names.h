// Names of fields and enum values, as error messages give them.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace shale {

// What a value looked like, in quotes, cut to a length that a line can bear; UTF-8 whatever the value is.
std::string Quoted(absl::string_view found);

// The candidate with the fewest edits from `name`, upper and lower case alike; empty if none is close.
std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates);

// `found "FULLY"; allowed: NONE, FULL; did you mean FULL?`
std::string EnumMessage(const google::protobuf::EnumDescriptor& type, absl::string_view found);

// `no such field; allowed: ...; did you mean ...?` for a field `name` that `type`, a message inside `root`, has not.
// When the field exists elsewhere under `root`, its path is what is suggested.
std::string UnknownFieldMessage(const google::protobuf::Descriptor& root, const google::protobuf::Descriptor& type,
                                absl::string_view name);

// The value of that name, null if there is none; value 0, "left out", has no name that a spec may use.
const google::protobuf::EnumValueDescriptor* FindEnumValue(const google::protobuf::EnumDescriptor& type,
                                                           const std::string& name);

}  // namespace shale
