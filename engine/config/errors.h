// Collects the errors of a spec, and where each of its fields was given.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// A place in a source ("job.textproto", or "--set" for overrides); line 0 if the source has no lines.
struct SpecLocation {
  std::string source;
  int line = 0;    // From 1.
  int column = 0;  // From 1.
};

// Collects the errors of one spec. A field is named by its path ("sharding.strategy"), element i of a list by its path
// and an index ("activation_checkpointing.recompute[i]"). Not thread-safe.
class SpecErrors {
 public:
  // `source` (a file name) is the location of errors that belong to no field.
  explicit SpecErrors(std::string source) : source_(std::move(source)) {}

  // Records where `path` was given. A later call for the same path replaces the location.
  void Locate(const std::string& path, SpecLocation location) { locations_[path] = std::move(location); }

  // Reports `message` at the location of `path`, or else of the nearest enclosing message, and marks `path` as faulty.
  void Add(const std::string& path, absl::string_view message);
  // Does the same at a given location. `path` may be empty: the error then belongs to no field.
  void AddAt(const SpecLocation& location, const std::string& path, absl::string_view message);
  // Reports a rule that several fields break together: at the first one that an override gives, as the likely cause,
  // else at the first one that the spec gives, else at the first one. Does nothing if one of them is already faulty,
  // because its intended value is unknown.
  void AddRule(const std::vector<std::string>& paths, absl::string_view message);

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }
  // Returns OK, or InvalidArgument with one error per line: at most 20, then a line that counts the rest.
  absl::Status ToStatus() const;

 private:
  SpecLocation Find(std::string path) const;
  // Returns whether `path` was given; if `overridden`, whether an override gave it.
  bool Given(const std::string& path, bool overridden) const;

  std::string source_;
  std::map<std::string, SpecLocation> locations_;
  std::set<std::string> faulty_;
  std::vector<std::string> messages_;
};

}  // namespace shale
