// Fields of a message that this program does not know, at any depth.
#pragma once

#include "google/protobuf/message.h"

namespace shale {

// Discards them, and tells whether there were any: then a newer program wrote the message, and it means more than what
// is known of it. Reflection's GetUnknownFields tells of the outermost message only.
inline bool HasUnknownFields(google::protobuf::Message& message) {
  const size_t bytes = message.ByteSizeLong();
  message.DiscardUnknownFields();
  return message.ByteSizeLong() != bytes;
}

}  // namespace shale
