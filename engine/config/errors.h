// Where the fields of a spec came from, and everything that is wrong with them.
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

// Collects the errors of one spec. A field is named by its path, "sharding.strategy"; element i of a list has "[i]"
// behind it. One thread.
class SpecErrors {
 public:
  // `source` locates what no field can: a file name.
  explicit SpecErrors(std::string source) : source_(std::move(source)) {}

  // Notes where `path` was given; a later note replaces an earlier one.
  void Locate(const std::string& path, SpecLocation location) { locations_[path] = std::move(location); }

  // Reports `message` at the place of `path`, or of the nearest message around it, and marks `path` as faulty.
  void Add(const std::string& path, absl::string_view message);
  // The same at a place that is known, which need not be a field's (`path` may be empty).
  void AddAt(const SpecLocation& location, const std::string& path, absl::string_view message);
  // Reports a rule that several fields break together: at the first one that an override gives, as the likely cause,
  // else at the first one that the spec gives. Silent when one of them is faulty already: what it should have been
  // nobody knows.
  void AddRule(const std::vector<std::string>& paths, absl::string_view message);

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }
  // Ok, or InvalidArgument with one error a line. At most 20; a last line counts the rest.
  absl::Status ToStatus() const;

 private:
  SpecLocation Find(std::string path) const;
  // Whether `path` was given, and by an override if `overridden`.
  bool Given(const std::string& path, bool overridden) const;

  std::string source_;
  std::map<std::string, SpecLocation> locations_;
  std::set<std::string> faulty_;
  std::vector<std::string> messages_;
};

}  // namespace shale
