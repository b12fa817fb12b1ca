#include "engine/train/run_sinks.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/events.h"
#include "engine/io/file.h"
#include "engine/text/numbers.h"
#include "kernels/check.h"

namespace shale {

namespace {

// Returns OK unless a part of `path`, which lies in the run folder, is a link, through which the run would write
// elsewhere. A job may name a path elsewhere itself.
absl::Status CheckNoLinkTo(absl::string_view run_folder, const std::string& path) {
  if (absl::StartsWith(path, "/")) return absl::OkStatus();
  std::string at(run_folder);
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    at = JoinPath(at, part);
    if (!IsLink(at)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(at, " is a link, through which a run does not write: remove it, or name where it leads"));
  }
  return absl::OkStatus();
}

// Opens what writes events to `path`, which the job gives relative to the run folder.
template <class Open>
absl::StatusOr<std::unique_ptr<EventWriter>> OpenIn(absl::string_view run_folder, const std::string& path, Open open) {
  SHALE_RETURN_IF_ERROR(CheckNoLinkTo(run_folder, path));
  return open(JoinPath(run_folder, path));
}

}  // namespace

RunSinks::RunSinks(const SinksConfig& config) {
  const auto add = [&](const char* field, const std::string& path, auto open) {
    if (!path.empty()) places_.push_back({field, path, open, std::make_unique<EventQueue>()});
  };
  add("telemetry.sinks.events", config.events, WriteJsonFile);
  add("telemetry.sinks.tensorboard", config.tensorboard, WriteTensorBoard);
  add("telemetry.sinks.prometheus", config.prometheus, WritePrometheus);
}

absl::Status RunSinks::Open(absl::string_view run_folder) {
  absl::Status first;
  for (Place& place : places_) {
    absl::StatusOr<std::unique_ptr<EventWriter>> writer = OpenIn(run_folder, place.path, place.open);
    if (writer.ok()) {
      place.queue->Start(*std::move(writer));
    } else {
      const absl::Status& status = writer.status();
      first.Update(absl::Status(status.code(), absl::StrCat(place.field, ": ", status.message())));
    }
  }
  return first;
}

void RunSinks::Take(const RunEvent& event) {
  for (const Place& place : places_) place.queue->Take(event);
}

std::vector<std::string> RunSinks::Close() {
  std::vector<std::string> lines;
  for (const Place& place : places_) {
    place.queue->Close();
    if (const absl::Status error = place.queue->error(); !error.ok()) {
      lines.push_back(absl::StrCat("NOT WRITTEN: events for ", place.field, ": ", error.message()));
    }
    if (const int64_t dropped = place.queue->dropped(); dropped > 0) {
      lines.push_back(absl::StrCat("NOT WRITTEN: ", Plural(dropped, "event"), " for ", place.field, ": ", place.path,
                                   " was too slow"));
    }
  }
  return lines;
}

}  // namespace shale
