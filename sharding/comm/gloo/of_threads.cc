#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/gloo/gloo.h"

namespace shale {
namespace {

// A store of threads.
class ThreadStore : public Store {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, double timeout_seconds) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_there = [&] { return values_.count(key) > 0; };
    if (changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), is_there)) return values_[key];
    return absl::DeadlineExceededError(absl::StrCat("nobody has put ", key, " for ", timeout_seconds, " s"));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // mutex_ guards this.
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGlooGroupOfThreads(const std::string& name, int ranks,
                                                                                    const GlooOptions& options) {
  ThreadStore store;
  GlooMembers members{.name = name, .process_of_rank = std::vector<int>(ranks)};
  std::iota(members.process_of_rank.begin(), members.process_of_rank.end(), 0);
  std::vector<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>> made(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    members.process = rank;
    threads.emplace_back([&, rank, members] { made[rank] = CreateGlooGroup(store, members, options); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (auto& mine : made) {
    SHALE_RETURN_IF_ERROR(mine.status());
    communicators.push_back(std::move(mine->front()));
  }
  return communicators;
}

// A child tries it. Where a process may read only its descendants, the child may not read this one either.
bool ProcessesMayReadMemory() {
  uint64_t here = 1, copy = 0;
  const iovec local = {&copy, sizeof(copy)}, remote = {&here, sizeof(here)};
  const pid_t self = getpid(), child = fork();
  if (child == 0) _exit(process_vm_readv(self, &local, 1, &remote, 1, 0) == sizeof(copy) ? 0 : 1);
  int status = 0;
  if (child < 0) return false;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace shale
