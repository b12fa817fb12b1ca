// The members of one JSON object, read with their types and ranges checked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/strict_json.h"

namespace shale {

// What is wrong with a file; everything at once, for one who corrects it wants to do so once.
class HfErrors {
 public:
  explicit HfErrors(std::string path) : path_(std::move(path)) {}

  void Add(absl::string_view key, absl::string_view found, absl::string_view allowed);
  bool empty() const { return errors_.empty(); }
  // InvalidArgument with a line `path: key: found ...; allowed: ...` for each (20 at most, and how many more), or OK.
  absl::Status ToStatus() const;

 private:
  std::string path_;
  std::vector<std::string> errors_;  // Those that are shown,
  size_t count_ = 0;                 // of so many.
};

// Borrows the object and the errors. A member that is null counts as absent, as it does for Python's None. What is
// wrong goes to the errors, and the reader gets some value that is allowed.
class HfFields {
 public:
  // `prefix` stands before the keys in messages ("rope_scaling.").
  HfFields(const Json& object, std::string prefix, HfErrors& errors)
      : object_(object), prefix_(std::move(prefix)), errors_(errors) {}

  // Null if there is none.
  const Json* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Both ends belong to the ranges. Required without a default.
  int64_t Int(absl::string_view key, int64_t min, int64_t max) const;
  int64_t IntOr(absl::string_view key, int64_t absent, int64_t min, int64_t max) const;
  double Number(absl::string_view key, double min, double max) const;
  double NumberOr(absl::string_view key, double absent, double min, double max) const;
  bool BoolOr(absl::string_view key, bool absent) const;
  std::string StringOr(absl::string_view key, absl::string_view absent) const;

  // Refuses another value than the one that is allowed; absent counts as `absent`.
  void Demand(absl::string_view key, bool allowed, bool absent, absl::string_view why) const;
  void Refuse(absl::string_view key, absl::string_view allowed) const;  // Shows the member, or "nothing".

 private:
  const Json& object_;
  const std::string prefix_;
  HfErrors& errors_;
};

}  // namespace shale
