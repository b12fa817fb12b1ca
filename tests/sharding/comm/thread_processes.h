// Control planes of "processes" that are threads of the test.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sharding/comm/control_plane.h"

namespace shale::testing {

// Thread-safe. Use the control plane of each process in a thread of its own, per channel.
class ThreadProcesses {
 public:
  explicit ThreadProcesses(int processes);
  ~ThreadProcesses();

  int size() const { return static_cast<int>(planes_.size()); }
  ControlPlane& operator[](int process);
  // Makes every call, waiting or later, fail as if a process had ended.
  void End();

 private:
  class Plane;
  struct Channel {
    std::vector<std::string> arriving, complete;  // Messages of the current round and of the one before.
    int arrived = 0, rounds = 0;
  };
  absl::StatusOr<std::vector<std::string>> Gather(int process, ControlChannel channel, std::string message);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Channel, kControlChannels> channels_;  // mutex_ guards this and `ended_`.
  bool ended_ = false;
  std::vector<std::unique_ptr<Plane>> planes_;
};

}  // namespace shale::testing
