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

// Collects the errors of a file, so that a user sees and corrects all of them at once.
class HfErrors {
 public:
  explicit HfErrors(std::string path) : path_(std::move(path)) {}

  void Add(absl::string_view key, absl::string_view found, absl::string_view allowed);
  bool empty() const { return errors_.empty(); }
  // Returns OK if there are no errors, else InvalidArgument with a line `path: key: found ...; allowed: ...` for each
  // (at most 20, and how many more there are).
  absl::Status ToStatus() const;

 private:
  std::string path_;
  std::vector<std::string> errors_;  // The errors that are shown.
  size_t count_ = 0;                 // The number of all errors.
};

// Reads members of an object. Borrows the object and the errors. A member that is null counts as absent, like Python's
// None. A wrong member is added to the errors, and the reading function returns some allowed value.
class HfFields {
 public:
  // Messages put `prefix` before the keys ("rope_scaling.").
  HfFields(const Json& object, std::string prefix, HfErrors& errors)
      : object_(object), prefix_(std::move(prefix)), errors_(errors) {}

  // Returns the member, or null if it is absent.
  const Json* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Ranges include both ends. Functions without a default require the member.
  int64_t Int(absl::string_view key, int64_t min, int64_t max) const;
  int64_t IntOr(absl::string_view key, int64_t absent, int64_t min, int64_t max) const;
  double Number(absl::string_view key, double min, double max) const;
  double NumberOr(absl::string_view key, double absent, double min, double max) const;
  bool BoolOr(absl::string_view key, bool absent) const;
  std::string StringOr(absl::string_view key, absl::string_view absent) const;

  // Adds an error if the member, which counts as `absent` if there is none, is not `allowed`. The message includes
  // `why`.
  void Demand(absl::string_view key, bool allowed, bool absent, absl::string_view why) const;
  void Refuse(absl::string_view key, absl::string_view allowed) const;  // Adds an error that shows the member.

 private:
  const Json& object_;
  const std::string prefix_;
  HfErrors& errors_;
};

}  // namespace shale
