// Parses untrusted JSON, without exceptions and within bounds. HfFields reads the members of one object, checking types
// and ranges.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// This type sorts members by name, as transformers writes them. The variant of nlohmann::json that keeps their order
// searches linearly, so that a hostile object would take quadratic time.
using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 16;
// The largest number of values, including objects and lists. A value may take only two bytes in the file, but takes up
// to about 200 in memory. An index has one value for each tensor: a mixture of experts of 670B parameters with one
// tensor per expert has 90,000.
constexpr int kMaxJsonValues = 1 << 20;

// Parses an object. Accepts any bytes. Returns InvalidArgument, with the byte position, for text that is not JSON, for
// half of a pair of surrogates, and for a number that is too large for a double. Also returns it for text that is not
// an object at the top, nests deeper than kMaxJsonDepth, has more than kMaxJsonValues values, or uses a name twice in
// one object (most parsers silently keep one of the two). Checks all of this before it builds anything.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text);

// Returns the errors of ParseStrictJson, and builds nothing.
absl::Status CheckStrictJson(absl::string_view text);

// Returns a value as text for a message, cut to a readable length.
std::string ShownJson(const Json& value);

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
