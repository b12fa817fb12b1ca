#include "engine/c/events.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/events.h"
#include "engine/events/event_json.h"
#include "engine/text/quote.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

using Function = void (*)(void* user, const char* json);

class FunctionWriter : public EventWriter {
 public:
  FunctionWriter(Function function, void* user) : function_(function), user_(user) {}
  absl::Status Write(const RunEvent& event) override {
    function_(user_, EventLine(event).ToString().c_str());
    return absl::OkStatus();
  }

 private:
  const Function function_;
  void* const user_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Events>> Events::Create(const shale_trainer_options& options, const SinksConfig& sinks) {
  for (const auto& [field, path] :
       {std::pair("events", sinks.events), {"tensorboard", sinks.tensorboard}, {"prometheus", sinks.prometheus}}) {
    if (path.empty() || absl::StartsWith(path, "/")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("telemetry.sinks.", field, ": found ", Quoted(path),
                     ", which begins in a run folder, and this trainer has none; give an absolute path"));
  }
  auto events = absl::WrapUnique(new Events(sinks));
  SHALE_RETURN_IF_ERROR(events->sinks_.Open("/"));
  const auto start = [&](std::unique_ptr<EventWriter> writer) {
    events->queues_.push_back(std::make_unique<EventQueue>());
    events->queues_.back()->Start(std::move(writer));
  };
  if (options.on_event != nullptr) {
    start(std::make_unique<FunctionWriter>(options.on_event, options.on_event_user));
  }
  if (options.event_descriptor != 0) start(WriteJsonTo(options.event_descriptor));
  return events;
}

Events::~Events() { *lost_ = sinks_.Close(); }

void Events::Take(const RunEvent& event) {
  for (const auto& queue : queues_) queue->Take(event);
  sinks_.Take(event);
}

}  // namespace shale::c
