// Passes the events of a run to a function or a file descriptor of the program that uses the C interface.
#pragma once

#include <memory>
#include <vector>

#include "engine/c/shale.h"
#include "engine/events/event.h"
#include "engine/events/event_queue.h"

namespace shale::c {

// The destructor waits for the last events, as EventQueue::Close does.
class Events : public EventSink {
 public:
  explicit Events(const shale_trainer_options& options);
  void Take(const RunEvent& event) override;

 private:
  std::vector<std::unique_ptr<EventQueue>> queues_;
};

}  // namespace shale::c
