// What the files in proto/job say of each field of a job: its comment, and the facts in its options
// (proto/field.proto).
//
// FieldHelp (engine/api/job.h) and FieldsPages explain the fields to people: for --help of the tools, and for the
// manual.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/field.pb.h"

namespace shale {

// Returns the facts of a field.
inline const proto::FieldFacts& FactsOf(const google::protobuf::FieldDescriptor& field) {
  return field.options().GetExtension(proto::facts);
}

// Returns the field at `path` of a job ("batch.micro_batch"), or null if there is none.
const google::protobuf::FieldDescriptor* FindField(absl::string_view path);

// Returns the comment of a message, field, enum or enum value as one line, or "" if it has none.
absl::string_view CommentOf(absl::string_view full_name);

// Returns the range of a number as text: `1 to 1048576`. A seed may have every 64-bit value.
std::string RangeText(const google::protobuf::FieldDescriptor& field);

// Returns `value` in the fewest digits that read back as the same double.
std::string NumberText(double value);

// Returns the value of a field that is no list and no message, as a job writes it, but without quotes. A field that
// `message` leaves out has its default.
std::string ValueText(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// Returns whether `message` gives the field, a list with at least one element.
bool Gives(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// Returns the pages of the manual with all fields, in Markdown, by their names: fields.md and fields_of_runs.md.
std::map<std::string, std::string> FieldsPages();

}  // namespace shale
