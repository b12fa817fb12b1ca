#include "tools/bench/comm_gloo.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/gloo/gloo.h"
#include "sharding/comm/store.h"
#include "tools/bench/support.h"

namespace shale {
namespace {

class MemoryStore : public Store {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, double timeout_seconds) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [&] { return values_.count(key) > 0; });
    if (!came) return absl::DeadlineExceededError(absl::StrCat("no rank stored ", key));
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // mutex_ guards it.
};

}  // namespace

absl::StatusOr<CommRanks> GlooRanks(JoinedProcesses& joined, int ranks, bool read_memory) {
  CommRanks made;
  made.about =
      absl::StrCat(ProcessorName(), ", ", ProcessorCount(), " processors, ", joined.alone() ? "threads" : "processes",
                   " on this host, ", read_memory ? "which read one another's memory" : "over TCP", " (Gloo)");
  const GlooOptions options = {.read_memory = read_memory, .report = [](const std::string& line) {
                                 std::fprintf(stderr, "comm: %s\n", line.c_str());
                               }};
  std::vector<int> process_of_rank(ranks);
  std::iota(process_of_rank.begin(), process_of_rank.end(), 0);
  if (!joined.alone()) {
    made.devices = {CreateCpuDevice()};
    SHALE_ASSIGN_OR_RETURN(
        made.communicators,
        CreateGlooGroup(joined.store(),
                        {.name = "all", .process = joined.place().process, .process_of_rank = process_of_rank},
                        options));
    return made;
  }
  made.devices.assign(ranks, CreateCpuDevice());
  made.communicators.resize(ranks);
  MemoryStore store;
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto mine = CreateGlooGroup(store, {.name = "all", .process = rank, .process_of_rank = process_of_rank}, options);
      statuses[rank] = mine.status();
      if (mine.ok()) made.communicators[rank] = std::move((*mine)[0]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) SHALE_RETURN_IF_ERROR(status);
  return made;
}

}  // namespace shale
