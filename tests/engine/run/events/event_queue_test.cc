#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/api/events.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// What a writer was given, and whether it may return. Shared with the test, because a queue owns its writer.
struct Journal {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;  // If false, Write waits.
  std::vector<int64_t> steps;
  int flushes = 0, begun = 0;
  bool destroyed = false;

  void Open(bool value) {
    const std::lock_guard<std::mutex> lock(mutex);
    open = value;
    changed.notify_all();
  }
  void AwaitBegun(int count) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return begun >= count; });
  }
};

class JournalWriter : public EventWriter {
 public:
  explicit JournalWriter(std::shared_ptr<Journal> journal, int64_t failing_step = -1)
      : journal_(std::move(journal)), failing_step_(failing_step) {}
  ~JournalWriter() override {
    const std::lock_guard<std::mutex> lock(journal_->mutex);
    journal_->destroyed = true;
    journal_->changed.notify_all();
  }
  absl::Status Write(const RunEvent& event) override {
    std::unique_lock<std::mutex> lock(journal_->mutex);
    ++journal_->begun;
    journal_->changed.notify_all();
    journal_->changed.wait(lock, [&] { return journal_->open; });
    const int64_t step = std::get<StepReport>(event.what).step;
    journal_->steps.push_back(step);
    return step == failing_step_ ? absl::UnavailableError("not now") : absl::OkStatus();
  }
  absl::Status Flush() override {
    const std::lock_guard<std::mutex> lock(journal_->mutex);
    ++journal_->flushes;
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Journal> journal_;
  const int64_t failing_step_;
};

RunEvent Step(int64_t step) { return {.what = StepReport{.step = step}}; }

TEST(EventQueueTest, WritesAllEventsInOrderAlsoThoseBeforeTheStart) {
  auto journal = std::make_shared<Journal>();
  EventQueue queue;
  queue.Take(Step(1));
  queue.Take(Step(2));
  queue.Start(std::make_unique<JournalWriter>(journal));
  queue.Take(Step(3));
  queue.Close();
  EXPECT_EQ(journal->steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_GE(journal->flushes, 1);
  EXPECT_TRUE(journal->destroyed);
  EXPECT_EQ(queue.dropped(), 0);
  EXPECT_TRUE(queue.error().ok());
}

TEST(EventQueueTest, ASlowWriterLosesTheNewestEventsAndTheyAreCounted) {
  auto journal = std::make_shared<Journal>();
  journal->Open(false);
  EventQueue queue(/*capacity=*/3);
  queue.Start(std::make_unique<JournalWriter>(journal));
  queue.Take(Step(1));
  journal->AwaitBegun(1);
  for (int64_t step = 2; step <= 6; ++step) queue.Take(Step(step));
  EXPECT_EQ(queue.dropped(), 3);
  journal->Open(true);
  queue.Close();
  EXPECT_EQ(journal->steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(queue.dropped(), 3);
}

TEST(EventQueueTest, AnErrorIsKeptAndLaterEventsAreWritten) {
  auto journal = std::make_shared<Journal>();
  EventQueue queue;
  queue.Start(std::make_unique<JournalWriter>(journal, /*failing_step=*/1));
  for (int64_t step = 1; step <= 3; ++step) queue.Take(Step(step));
  queue.Close();
  EXPECT_EQ(journal->steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(queue.error(), absl::UnavailableError("not now"));
}

TEST(EventQueueTest, AWriterThatIsStuckDoesNotKeepTheRunFromEnding) {
  auto journal = std::make_shared<Journal>();
  journal->Open(false);
  {
    EventQueue queue(EventQueue::kCapacity, /*most_wait=*/absl::Milliseconds(20));
    queue.Start(std::make_unique<JournalWriter>(journal));
    queue.Take(Step(1));
    queue.Take(Step(2));
    queue.Close();
    EXPECT_EQ(queue.dropped(), 2);
  }
  // The thread ends, and destroys the writer, when it gets on.
  journal->Open(true);
  std::unique_lock<std::mutex> lock(journal->mutex);
  journal->changed.wait(lock, [&] { return journal->destroyed; });
}

TEST(EventQueueTest, AQueueThatNeverStartedLosesItsEvents) {
  EventQueue queue;
  queue.Take(Step(1));
  queue.Close();
  EXPECT_EQ(queue.dropped(), 1);
}

}  // namespace
}  // namespace shale
