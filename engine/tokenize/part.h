// Reads one part of a tokenizer.json, and refuses what it does not know.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/tokenize/regex.h"

namespace shale {

// A JSON object with the path at which it stands, for messages. Borrows the JSON.
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
  // Returns an error unless this is an object whose names are among those given, and "type".
  absl::Status Check(std::initializer_list<absl::string_view> names) const;
  // Returns "type", a string.
  absl::StatusOr<std::string> Type() const;
  // Returns a member; null if it is missing. REQUIRES: this is an object.
  JsonPart Member(const std::string& name) const;
  // Returns the elements of a list.
  absl::StatusOr<std::vector<JsonPart>> Elements() const;

  // Return the value of a member that must be there.
  absl::StatusOr<std::string> Text(const std::string& name) const;
  absl::StatusOr<int64_t> Integer(const std::string& name) const;  // Not negative, below 2^31.
  // Returns `missing` for a member that is null or missing.
  absl::StatusOr<bool> Flag(const std::string& name, bool missing) const;
  // Returns the expression of a member of the form {"String": "..."} or {"Regex": "..."}. Sets `*regex_text`, if it is
  // not null, to the text of a "Regex", else to "".
  absl::StatusOr<Regex> Pattern(const std::string& name, std::string* regex_text = nullptr) const;

 private:
  const Json* json_;
  std::string path_;
};

// Appends the parts of a part to `parts`, in order: those of a "Sequence", in whose member `name` they are, itself
// otherwise, and none for null.
absl::Status Flatten(const JsonPart& part, const std::string& name, std::vector<JsonPart>* parts);

}  // namespace shale
