#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "engine/api/events.h"
#include "kernels/check.h"

namespace shale {

struct EventQueue::Shared {
  explicit Shared(int64_t most) : capacity(most) {}

  const int64_t capacity;
  std::mutex mutex;  // Guards everything below.
  std::condition_variable changed;
  std::deque<RunEvent> waiting;
  bool closing = false;  // No further event comes.
  bool ended = false;    // The thread has destroyed the writer, and touches nothing more.
  int64_t dropped = 0;
  absl::Status error;
};

EventQueue::EventQueue(int64_t capacity, absl::Duration most_wait)
    : shared_(std::make_shared<Shared>(capacity)), most_wait_(most_wait) {}

void EventQueue::Start(std::unique_ptr<EventWriter> writer) {
  SHALE_CHECK(!thread_.joinable()) << "an EventQueue was started twice";
  thread_ = std::thread([shared = shared_](std::unique_ptr<EventWriter> mine) { WriteEvents(shared, std::move(mine)); },
                        std::move(writer));
}

void EventQueue::Close() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (shared_->closing) return;
  shared_->closing = true;
  shared_->changed.notify_all();
  const auto ended = [&] { return shared_->ended; };
  if (thread_.joinable()) shared_->changed.wait_for(lock, absl::ToChronoNanoseconds(most_wait_), ended);
  shared_->dropped += static_cast<int64_t>(shared_->waiting.size());
  if (!thread_.joinable()) return;
  if (ended()) {
    lock.unlock();
    thread_.join();
  } else {
    thread_.detach();
  }
}

void EventQueue::Take(const RunEvent& event) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (static_cast<int64_t>(shared_->waiting.size()) >= shared_->capacity) {
    ++shared_->dropped;
    return;
  }
  shared_->waiting.push_back(event);
  shared_->changed.notify_all();
}

void EventQueue::WriteEvents(const std::shared_ptr<Shared>& shared, std::unique_ptr<EventWriter> writer) {
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return !shared->waiting.empty() || shared->closing; });
    if (shared->waiting.empty()) break;
    // The event stays in the queue while it is written, so that a writer that is stuck holds no more than the capacity.
    const RunEvent event = shared->waiting.front();
    const bool last = shared->waiting.size() == 1;
    lock.unlock();
    absl::Status status = writer->Write(event);
    if (last) status.Update(writer->Flush());
    lock.lock();
    shared->waiting.pop_front();
    if (shared->error.ok()) shared->error = status;
  }
  lock.unlock();
  writer.reset();
  lock.lock();
  shared->ended = true;
  shared->changed.notify_all();
}

int64_t EventQueue::dropped() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->dropped;
}

absl::Status EventQueue::error() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->error;
}

double UnixSecondsNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace shale
