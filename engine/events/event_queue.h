// EventQueue: a sink that never makes the run wait. A thread of its own passes the events on to a writer.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/events/event.h"
#include "engine/events/event_writer.h"

namespace shale {

// Holds up to `capacity` events that wait for the writer. If more come, it drops the newest, and counts them. An error
// of the writer does not end anything either: the first one is kept, and later events are still tried.
class EventQueue : public EventSink {
 public:
  static constexpr int64_t kCapacity = 4096;
  // How long Close waits for the writer.
  static constexpr absl::Duration kMostWait = absl::Seconds(5);

  explicit EventQueue(int64_t capacity = kCapacity, absl::Duration most_wait = kMostWait);
  EventQueue(const EventQueue&) = delete;
  ~EventQueue() override { Close(); }

  // Begins to write. Events that came before wait for this. Call at most once.
  void Start(std::unique_ptr<EventWriter> writer);

  // Never waits for the writer. Safe to call from any thread. REQUIRES: not closed.
  void Take(const RunEvent& event) override;

  // Waits until all events are written, but not longer than `most_wait`; counts those that are not written by then as
  // dropped. A writer that is stuck, for instance because a file system does not answer, keeps its thread and is
  // destroyed when it returns. Does nothing if the queue is closed already.
  void Close();

  // Returns the number of events that were dropped so far.
  int64_t dropped() const;
  // Returns the first error of the writer, or OK.
  absl::Status error() const;

 private:
  struct Shared;  // What the thread and this object share; lives as long as either.
  static void WriteEvents(const std::shared_ptr<Shared>& shared, std::unique_ptr<EventWriter> writer);

  const std::shared_ptr<Shared> shared_;
  const absl::Duration most_wait_;
  std::thread thread_;
};

}  // namespace shale
