#include "tests/kernels/cuda/host/block_turns.h"

#include <thread>
#include <utility>

namespace shale::cuda_on_host {

void BlockTurns::Choose() {
  if (waiting_.empty()) return;
  std::swap(waiting_[random_() % waiting_.size()], waiting_.back());
  turn_ = waiting_.back();
  waiting_.pop_back();
  chosen_.notify_all();
}

void BlockTurns::Launch::Await() {
  if (turns_ == nullptr) return;
  std::unique_lock lock(turns_->mutex_);
  turns_->waiting_.push_back(this);
  if (std::exchange(has_turn_, true)) {
    turns_->turn_ = nullptr;
    lock.unlock();
    std::this_thread::yield();  // Lets a launch whose thread has not run yet come and wait, too.
    lock.lock();
  }
  if (turns_->turn_ == nullptr) turns_->Choose();
  turns_->chosen_.wait(lock, [this] { return turns_->turn_ == this; });
}

BlockTurns::Launch::~Launch() {
  if (!has_turn_) return;
  const std::lock_guard lock(turns_->mutex_);
  turns_->turn_ = nullptr;
  turns_->Choose();
}

}  // namespace shale::cuda_on_host
