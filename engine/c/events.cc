#include "engine/c/events.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/events/event_json.h"
#include "engine/events/event_writer.h"

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

Events::Events(const shale_trainer_options& options) {
  const auto start = [this](std::unique_ptr<EventWriter> writer) {
    queues_.push_back(std::make_unique<EventQueue>());
    queues_.back()->Start(std::move(writer));
  };
  if (options.on_event != nullptr) {
    start(std::make_unique<FunctionWriter>(options.on_event, options.on_event_user));
  }
  if (options.event_descriptor != 0) start(WriteJsonTo(options.event_descriptor));
}

void Events::Take(const RunEvent& event) {
  for (const auto& queue : queues_) queue->Take(event);
}

}  // namespace shale::c
