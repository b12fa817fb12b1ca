// Reads the members of one JSON object, checking types and ranges.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/strict_json.h"

namespace shale {

// Collects the errors of a file, so that a user sees all of them at once.
class HfErrors {
 public:
  explicit HfErrors(std::string path) : path_(std::move(path)) {}

  void Add(absl::string_view key, absl::string_view found, absl::string_view allowed);
  bool empty() const { return errors_.empty(); }
  // Returns OK if there are no errors. Otherwise returns InvalidArgument with a line `path: key: found ...; allowed:
  // ...` for each error: at most 20, then a line that counts the rest.
  absl::Status ToStatus() const;

 private:
  std::string path_;
  std::vector<std::string> errors_;  // The errors that are shown.
  size_t count_ = 0;                 // The number of all errors.
};

// Reads members of an object. Borrows the object and the errors. A member that is null counts as absent, like Python's
// None. If a member is wrong, the reading function adds an error and returns some allowed value.
class HfFields {
 public:
  // Error messages put `prefix` ("rope_scaling.") before the keys.
  HfFields(const Json& object, std::string prefix, HfErrors& errors)
      : object_(object), prefix_(std::move(prefix)), errors_(errors) {}

  // Returns the member, or null if it is absent.
  const Json* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Return the member. Ranges include both ends. The Or functions return `absent` if the member is absent. The others
  // add an error.
  int64_t Int(absl::string_view key, int64_t min, int64_t max) const;
  int64_t IntOr(absl::string_view key, int64_t absent, int64_t min, int64_t max) const;
  double Number(absl::string_view key, double min, double max) const;
  double NumberOr(absl::string_view key, double absent, double min, double max) const;
  bool BoolOr(absl::string_view key, bool absent) const;
  std::string StringOr(absl::string_view key, absl::string_view absent) const;

  // Adds an error, which includes `why`, unless the member is the Boolean `allowed`. An absent member counts as
  // `absent`.
  void Demand(absl::string_view key, bool allowed, bool absent, absl::string_view why) const;
  void Refuse(absl::string_view key, absl::string_view allowed) const;  // Adds an error that shows the member.

 private:
  const Json& object_;
  const std::string prefix_;
  HfErrors& errors_;
};

}  // namespace shale
