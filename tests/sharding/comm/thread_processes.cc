#include "tests/sharding/comm/thread_processes.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale::testing {

class ThreadProcesses::Plane : public ControlPlane {
 public:
  Plane(ThreadProcesses& processes, int process) : processes_(processes), process_(process) {}
  int process() const override { return process_; }
  int processes() const override { return processes_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(ControlChannel channel, std::string message) override {
    return processes_.Gather(process_, channel, std::move(message));
  }
  absl::StatusOr<std::string> Broadcast(ControlChannel channel, std::string message) override {
    SHALE_ASSIGN_OR_RETURN(std::vector<std::string> all, Gather(channel, std::move(message)));
    return all[0];
  }
  absl::Status Barrier(ControlChannel channel) override { return Gather(channel, "").status(); }

 private:
  ThreadProcesses& processes_;
  const int process_;
};

ThreadProcesses::ThreadProcesses(int processes) {
  for (int process = 0; process < processes; ++process) planes_.push_back(std::make_unique<Plane>(*this, process));
  for (Channel& channel : channels_) channel.arriving.resize(processes);
}

ThreadProcesses::~ThreadProcesses() = default;

ControlPlane& ThreadProcesses::operator[](int process) { return *planes_[process]; }

void ThreadProcesses::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

absl::StatusOr<std::vector<std::string>> ThreadProcesses::Gather(int process, ControlChannel which,
                                                                 std::string message) {
  std::unique_lock<std::mutex> lock(mutex_);
  Channel& channel = channels_[static_cast<size_t>(which)];
  channel.arriving[process] = std::move(message);
  const int round = channel.rounds;
  if (++channel.arrived == size()) {
    channel.complete = channel.arriving;
    channel.arrived = 0;
    ++channel.rounds;
    changed_.notify_all();
  }
  if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_ || channel.rounds != round; })) {
    return absl::DeadlineExceededError(
        absl::StrCat("process ", process, " waited for ", size() - channel.arrived, " processes in vain"));
  }
  if (channel.rounds == round) return absl::AbortedError("a process has ended");
  return channel.complete;
}

}  // namespace shale::testing
