// Collects the errors of a spec, and the place where each of its fields was given.
//
// EnumMessage and UnknownFieldMessage say which names of values and fields a spec may have.
//
// OurField and OurValue translate words that other trainers use into those of job specs, for messages about words that
// a spec does not have.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "google/protobuf/descriptor.h"

namespace shale {

// A place in a source ("job.textproto", or "--set" for overrides). The line is 0 if the source has no lines.
struct SpecLocation {
  std::string source;
  int line = 0;    // From 1.
  int column = 0;  // From 1.
};

// Collects the errors of one spec. Names a field by its path ("sharding.strategy"), and element i of a list by the path
// of the list and an index ("activation_checkpointing.recompute[i]"). Not thread-safe.
class SpecErrors {
 public:
  // `source` (a file name) is the location of errors that belong to no field.
  explicit SpecErrors(std::string source) : source_(std::move(source)) {}

  // Records where `path` was given. A later call for the same path replaces the location.
  void Locate(const std::string& path, SpecLocation location) { locations_[path] = std::move(location); }

  // Reports `message` and marks `path` as faulty. The location is that of `path`, else that of the nearest enclosing
  // message that was given, else `source`.
  void Add(const std::string& path, absl::string_view message);
  // Does the same at a given location. If `path` is empty, the error belongs to no field.
  void AddAt(const SpecLocation& location, const std::string& path, absl::string_view message);
  // Reports a rule that the fields `paths` break together. The error appears at PlaceOfRule. Does not mark the fields:
  // they may break other rules, too, and a job is told all of them at once. Does nothing if one of the fields is
  // already faulty, because its intended value is unknown, or if the same was reported at that place before.
  void AddRule(const std::vector<std::string>& paths, absl::string_view message);
  // Does the same for a message in which "it" is the first of the fields. Names that field before the message if the
  // error appears at another one.
  void AddRuleAboutFirst(const std::vector<std::string>& paths, absl::string_view message);
  // Returns the first of the fields that an override gives, because the override is the likely cause; else the first
  // that the spec gives; else the first.
  std::string PlaceOfRule(const std::vector<std::string>& paths) const;
  // Marks `path` as faulty, so that no rule about it is reported from here on.
  void MarkFaulty(const std::string& path) { faulty_.insert(path); }

  bool empty() const { return errors_.empty(); }
  size_t size() const { return errors_.size(); }
  // Returns the errors in the order in which they were reported.
  const std::vector<JobError>& errors() const { return errors_; }
  // Returns OK if there are no errors. Otherwise returns InvalidArgument with one error per line: at most 20, then a
  // line that counts the rest.
  absl::Status ToStatus() const;

 private:
  void Report(const SpecLocation& location, const std::string& path, absl::string_view message);
  SpecLocation Find(std::string path) const;
  // Returns whether `path` was given. If `overridden` is true, returns whether an override gave it.
  bool Given(const std::string& path, bool overridden) const;

  std::string source_;
  std::map<std::string, SpecLocation> locations_;
  std::set<std::string> faulty_;
  std::set<std::pair<std::string, std::string>> rules_;  // The places and messages of broken rules.
  std::vector<JobError> errors_;
};

// Returns `found "FULL"; allowed: DDP, FULL_SHARD; did you mean FULL_SHARD?`
std::string EnumMessage(const google::protobuf::EnumDescriptor& type, absl::string_view found);

// Returns `no such field; allowed: ...; did you mean ...?` for a field `name` that does not exist in `type`, a message
// inside `root`. If no field of `type` is close but `name` exists elsewhere under `root`, suggests its path.
std::string UnknownFieldMessage(const google::protobuf::Descriptor& root, const google::protobuf::Descriptor& type,
                                absl::string_view name);

// Returns the enum value of that name, or null if there is none. Also returns null for value 0, because it means "left
// out" and a spec may not name it.
const google::protobuf::EnumValueDescriptor* FindEnumValue(const google::protobuf::EnumDescriptor& type,
                                                           const std::string& name);

// Returns the field or the advice to show for a field `name` that the spec does not have:
// "activation_checkpointing.preset=BLOCK" for "gradient_checkpointing", "sharding.strategy=FULL_SHARD" for "fsdp".
// Returns "" if the name is not known.
std::string OurField(absl::string_view name);

// Returns the enum value that is called `name` elsewhere: "FULL_SHARD" for "zero-3". The value may be followed by
// advice: "FULL_SHARD with sharding.shard_ranks" for "HYBRID_SHARD". Ignores case, "_" and "-". Returns "" if the name
// is not known. Does not look at any enum, so the caller must check that its enum has the value.
std::string OurValue(absl::string_view name);

}  // namespace shale
