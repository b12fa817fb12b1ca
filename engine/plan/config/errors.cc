#include "engine/plan/config/errors.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/strings/messages.h"

namespace shale {
namespace {

constexpr size_t kMaxMessages = 20;
constexpr size_t kLongestPath = 200;  // Bounds the paths of unknown fields. A field's path has at most 43 characters.

// Returns "job.textproto:12:3: sharding.strategy: found ...".
std::string LineOf(const JobError& error) {
  std::string text = error.source;
  if (error.line > 0) absl::StrAppend(&text, ":", error.line, ":", error.column);
  if (!error.path.empty()) absl::StrAppend(&text, ": ", error.path);
  return absl::StrCat(text, ": ", error.message);
}

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

std::string WithSuggestion(std::string message, const std::string& suggestion) {
  if (!suggestion.empty()) absl::StrAppend(&message, "; did you mean ", suggestion, "?");
  return message;
}

// Returns the path under `type` of a field called `name`, or "" if there is none. The recursion ends because no message
// of a job spec contains itself.
std::string FindElsewhere(const Descriptor& type, const std::string& name) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.name() == name) return name;
    if (field.message_type() == nullptr) continue;
    const std::string inside = FindElsewhere(*field.message_type(), name);
    if (!inside.empty()) return absl::StrCat(field.name(), ".", inside);
  }
  return "";
}

}  // namespace

void SpecErrors::Add(const std::string& path, absl::string_view message) { AddAt(Find(path), path, message); }

void SpecErrors::AddAt(const SpecLocation& location, const std::string& path, absl::string_view message) {
  Report(location, path, message);
  if (!path.empty()) MarkFaulty(path);
}

void SpecErrors::Report(const SpecLocation& location, const std::string& path, absl::string_view message) {
  errors_.push_back({.source = location.source,
                     .line = location.line,
                     .column = location.column,
                     .path = path.substr(0, kLongestPath),
                     .message = std::string(message)});
}

void SpecErrors::AddRule(const std::vector<std::string>& paths, absl::string_view message) {
  for (const std::string& path : paths) {
    if (faulty_.count(path) > 0) return;
  }
  const std::string place = PlaceOfRule(paths);
  if (rules_.emplace(place, std::string(message)).second) Report(Find(place), place, message);
}

void SpecErrors::AddRuleAboutFirst(const std::vector<std::string>& paths, absl::string_view message) {
  const std::string it = PlaceOfRule(paths) == paths.front() ? "" : absl::StrCat(paths.front(), ": ");
  AddRule(paths, absl::StrCat(it, message));
}

std::string SpecErrors::PlaceOfRule(const std::vector<std::string>& paths) const {
  for (const bool overridden : {true, false}) {
    for (const std::string& path : paths) {
      if (Given(path, overridden)) return path;
    }
  }
  return paths.front();
}

absl::Status SpecErrors::ToStatus() const {
  if (errors_.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(errors_.size(), kMaxMessages); ++i) lines.push_back(LineOf(errors_[i]));
  if (errors_.size() > kMaxMessages) {
    lines.push_back(absl::StrCat("and ", errors_.size() - kMaxMessages, " more errors"));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

bool SpecErrors::Given(const std::string& path, bool overridden) const {
  const auto found = locations_.find(path);
  return found != locations_.end() && (!overridden || found->second.line == 0);
}

SpecLocation SpecErrors::Find(std::string path) const {
  while (!path.empty()) {
    const auto found = locations_.find(path);
    if (found != locations_.end()) return found->second;
    const size_t end = path.find_last_of(".[");
    path.resize(end == std::string::npos ? 0 : end);
  }
  return {source_};
}

std::string EnumMessage(const EnumDescriptor& type, absl::string_view found) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) allowed.push_back(type.value(i)->name());
  }
  const std::string ours = OurValue(found);
  const std::string value = ours.substr(0, ours.find(' '));
  const bool known = std::find(allowed.begin(), allowed.end(), value) != allowed.end();
  return WithSuggestion(absl::StrCat("found ", Quoted(found), "; allowed: ", absl::StrJoin(allowed, ", ")),
                        known ? ours : Nearest(found, allowed));
}

std::string UnknownFieldMessage(const Descriptor& root, const Descriptor& type, absl::string_view name) {
  std::vector<std::string> allowed;
  for (int i = 0; i < type.field_count(); ++i) allowed.push_back(type.field(i)->name());
  std::string suggestion = OurField(name);
  if (suggestion.empty()) suggestion = Nearest(name, allowed);
  if (suggestion.empty()) suggestion = FindElsewhere(root, std::string(name));
  return WithSuggestion(absl::StrCat("no such field; allowed: ", absl::StrJoin(allowed, ", ")), suggestion);
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor& type, const std::string& name) {
  const EnumValueDescriptor* value = type.FindValueByName(name);
  return value == nullptr || value->number() == 0 ? nullptr : value;
}

}  // namespace shale
