#include "engine/config/errors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

}  // namespace

void SpecErrors::Add(const std::string& path, absl::string_view message) { AddAt(Find(path), path, message); }

void SpecErrors::AddAt(const SpecLocation& location, const std::string& path, absl::string_view message) {
  errors_.push_back({.source = location.source,
                     .line = location.line,
                     .column = location.column,
                     .path = path.substr(0, kLongestPath),
                     .message = std::string(message)});
  if (!path.empty()) faulty_.insert(path);
}

void SpecErrors::AddRule(const std::vector<std::string>& paths, absl::string_view message) {
  for (const std::string& path : paths) {
    if (faulty_.count(path) > 0) return;
  }
  for (const bool overridden : {true, false}) {
    for (const std::string& path : paths) {
      if (Given(path, overridden)) return Add(path, message);
    }
  }
  Add(paths.front(), message);
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

}  // namespace shale
