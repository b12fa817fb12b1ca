// Finds what is wrong with a textproto before the protobuf parser sees it, and where each field stands.
//
// The protobuf parser alone would stop at the first error, name no field path and no allowed values, and place some
// errors one token late. After this check it has nothing left to refuse.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/config/errors.h"
#include "google/protobuf/descriptor.h"

namespace shale {

struct TextSource {
  std::string name;        // Of the source in messages.
  bool has_lines = true;   // False: locations are the name alone.
  std::string prefix;      // Path of the message that the text describes; empty: the root.
  bool one_field = false;  // The text may hold just one field at its top level.
};

// Checks that `text` is a well-formed `type`: syntax, names of fields and enum values, types and 64-bit ranges of
// numbers, singular fields given twice, members of one oneof given together. Reports all that it finds, going on after
// a bad name or value and ending at bad syntax; notes in `errors` where each field was given. `root` is the type of the
// whole spec, for suggestions. Nesting costs no stack, however deep the text.
void CheckSpecText(absl::string_view text, const google::protobuf::Descriptor& root,
                   const google::protobuf::Descriptor& type, const TextSource& source, SpecErrors* errors);

}  // namespace shale
