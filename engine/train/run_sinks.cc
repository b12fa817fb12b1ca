#include "engine/train/run_sinks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/events/event_writer.h"
#include "engine/io/file.h"
#include "engine/text/numbers.h"

namespace shale {

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
    absl::StatusOr<std::unique_ptr<EventWriter>> writer = place.open(JoinPath(run_folder, place.path));
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
