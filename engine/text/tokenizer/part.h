// Reads one part of a tokenizer.json. Refuses fields that it does not know.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/text/tokenizer/regex.h"

namespace shale {

// A JSON value with its path in the file, for messages. Borrows the JSON.
class JsonPart {
 public:
  JsonPart(const Json* json, std::string path) : json_(json), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return json_->is_null(); }

  // Returns InvalidArgument "<path>: <what>".
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }
  // Returns an error unless this is an object that has no other fields than these and "type".
  absl::Status Check(std::initializer_list<absl::string_view> names) const;
  // Returns the field "type", a string.
  absl::StatusOr<std::string> Type() const;
  // Returns a field; null if it is missing. REQUIRES: this is an object.
  JsonPart Member(const std::string& name) const;
  // Returns the elements of a list.
  absl::StatusOr<std::vector<JsonPart>> Elements() const;

  // Return the value of a field. Return an error if it is missing.
  absl::StatusOr<std::string> Text(const std::string& name) const;
  absl::StatusOr<int64_t> Integer(const std::string& name) const;  // From 0 to 2^31 - 1.
  // Returns `missing` for a field that is null or missing.
  absl::StatusOr<bool> Flag(const std::string& name, bool missing) const;
  // Returns the expression of a field of the form {"String": "..."} or {"Regex": "..."}. If `regex_text` is not null,
  // sets it to the text of the "Regex", or to "" for a "String".
  absl::StatusOr<Regex> Pattern(const std::string& name, std::string* regex_text = nullptr) const;

 private:
  const Json* json_;
  std::string path_;
};

// Appends `part` to `parts`. Appends nothing if it is null. If it is a "Sequence", appends the parts in its field
// `name` instead, in order; these may be sequences too. Returns InvalidArgument for more than kMaxSteps parts.
absl::Status Flatten(const JsonPart& part, const std::string& name, std::vector<JsonPart>* parts);

}  // namespace shale
