// BlockTurns: runs the launches of several streams block by block, in random order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>
#include <vector>

namespace shale::cuda_on_host {

// Each launch runs on a thread of its own. One block runs at a time. After it, any launch that has blocks left may be
// next. This orders all blocks for ThreadSanitizer, which then sees no missing wait between streams. Thread-safe.
class BlockTurns {
 public:
  explicit BlockTurns(uint64_t seed) : random_(seed) {}

  // A launch that takes part in the turns while the object exists. A null `turns` makes it do nothing.
  class Launch {
   public:
    explicit Launch(BlockTurns* turns) : turns_(turns) {}
    ~Launch();
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
    // Waits until the launch may run its next block. Until the next call, or the end of the object, no other may.
    void Await();

   private:
    BlockTurns* const turns_;
    bool has_turn_ = false;
  };

 private:
  // Gives the turn to any launch that waits for it. REQUIRES: mutex_ is held, and nobody has the turn.
  void Choose();

  std::mutex mutex_;
  std::condition_variable chosen_;
  std::mt19937_64 random_;  // Guarded by mutex_, like the following.
  std::vector<const Launch*> waiting_;
  const Launch* turn_ = nullptr;  // The launch that has the turn. Null if none has.
};

}  // namespace shale::cuda_on_host
