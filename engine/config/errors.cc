#include "engine/config/errors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shale {

constexpr size_t kMaxMessages = 20;
constexpr size_t kLongestPath = 200;  // Bounds the paths of unknown fields. A field's path has at most 43 characters.

void SpecErrors::Add(const std::string& path, absl::string_view message) { AddAt(Find(path), path, message); }

void SpecErrors::AddAt(const SpecLocation& location, const std::string& path, absl::string_view message) {
  std::string text = location.source;
  if (location.line > 0) absl::StrAppend(&text, ":", location.line, ":", location.column);
  if (!path.empty()) absl::StrAppend(&text, ": ", path.substr(0, kLongestPath));
  absl::StrAppend(&text, ": ", message);
  messages_.push_back(std::move(text));
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
  if (messages_.empty()) return absl::OkStatus();
  if (messages_.size() <= kMaxMessages) return absl::InvalidArgumentError(absl::StrJoin(messages_, "\n"));
  const std::vector<std::string> shown(messages_.begin(), messages_.begin() + kMaxMessages);
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(shown, "\n"), "\nand ", messages_.size() - kMaxMessages, " more errors"));
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
