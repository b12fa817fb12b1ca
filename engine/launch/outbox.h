// Outbox: the messages that a stream of gRPC's callback interface is still to write, one at a time.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

namespace shale {

// Thread-safe. gRPC may call back while a write starts, so a write must start outside all locks: Push under the owner's
// lock, for the order, and Next without it.
template <class Message>
class Outbox {
 public:
  void Push(Message message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_) waiting_.push_back(std::move(message));
  }
  // Returns the message whose write is to start now, or null if one is under way or none waits.
  const Message* Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || closed_ || waiting_.empty()) return nullptr;
    writing_ = true;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    return &current_;
  }
  // Says that the write of the last Next has ended.
  void Written() {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
  }
  // End the outbox: after the messages in it have been written, or at once. Later messages are dropped.
  void EndAfterThese() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  void EndNow() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  // Returns true once: in the first call after the outbox has ended and its last write too.
  bool Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_ || closed_ || writing_ || !waiting_.empty()) return false;
    closed_ = true;
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Message> waiting_;
  Message current_;
  bool writing_ = false, ending_ = false, closed_ = false;
};

}  // namespace shale
