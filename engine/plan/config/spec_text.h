// Finds the errors of a textproto before the protobuf parser reads it, and the location of each field.
//
// The protobuf parser alone would stop at the first error, name no field path and no allowed values, and place some
// errors one token late. The parser accepts every text that passes this check.
//
// Applies overrides of single fields (path=value), which engine/api/job.h describes.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/config/errors.h"
#include "google/protobuf/descriptor.h"
#include "proto/job.pb.h"

namespace shale {

struct TextSource {
  std::string name;        // Name of the source in messages.
  bool has_lines = true;   // False: a location is the name alone.
  std::string prefix;      // Path of the message that the text describes. Empty: the root.
  bool one_field = false;  // The text may have only one field at its top level.
};

// Checks that `text` is a well-formed message of `type`. Finds bad syntax, unknown names of fields and enum values,
// values of wrong types, integers that do not fit 64 bits, singular fields given twice, and several members of one
// oneof. Reports the errors in `errors`, goes on after a bad name or value, and ends at bad syntax. Also notes in
// `errors` where each field was given. `root` is the type of the whole spec, for suggestions. Does not recurse, so deep
// nesting in the text needs no stack.
void CheckSpecText(absl::string_view text, const google::protobuf::Descriptor& root,
                   const google::protobuf::Descriptor& type, const TextSource& source, SpecErrors* errors);

// Applies the overrides to `job` in order. Reports each one that cannot be applied, with "--set" as its location, and
// still applies the others.
void ApplyOverrides(absl::Span<const std::string> overrides, proto::Job* job, SpecErrors* errors);

}  // namespace shale
