#include "engine/generate/stop_strings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace shale {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  strings_.erase(std::remove(strings_.begin(), strings_.end(), ""), strings_.end());
}

std::string StopStrings::Push(absl::string_view piece) {
  if (stopped_) return "";
  held_.append(piece.data(), piece.size());
  size_t stop = std::string::npos;
  for (const std::string& string : strings_) stop = std::min(stop, held_.find(string));
  stopped_ = stop != std::string::npos;
  // The earliest place from which the rest of the text is the beginning of a stop string.
  size_t end = stopped_ ? stop : held_.size();
  for (size_t begin = 0; !stopped_ && begin < end; ++begin) {
    const absl::string_view rest = absl::string_view(held_).substr(begin);
    const auto begins = [&](const std::string& string) { return absl::StartsWith(string, rest); };
    if (std::any_of(strings_.begin(), strings_.end(), begins)) end = begin;
  }
  std::string shown = held_.substr(0, end);
  held_.erase(0, stopped_ ? std::string::npos : end);
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

}  // namespace shale
