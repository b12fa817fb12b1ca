// GlooGroup: the ranks of a group that this process holds, and what they share: connections, failures, deadlines.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sharding/comm/deadline.h"
#include "sharding/comm/gloo/layout.h"
#include "sharding/comm/gloo/links.h"
#include "sharding/comm/gloo/memory.h"
#include "sharding/comm/rendezvous.h"

namespace shale {

// What a process tells its peers when its group fails or a rank leaves. Its bytes are a message.
struct GlooNotice {
  int32_t left_rank = -1;    // -1: the group has failed.
  int32_t code = 0;          // Of the failure.
  uint64_t collectives = 0;  // After which the rank left.
  char message[1000] = {};   // Of the failure, cut to this size. Ends with 0.
};

// A group fails once, with its first error:
//
//     Fail or a notice of a peer -> peers can no longer trust this memory -> waits of the ranks end
//                                -> peers get a notice -> connections close -> ranks return
//
// Thread-safe. The communicators of the local ranks own the group together.
class GlooGroup {
 public:
  GlooGroup(GlooLayout layout, std::unique_ptr<GlooLinks> links, std::unique_ptr<GlooMemory> memory,
            double timeout_seconds);
  ~GlooGroup();

  const GlooLayout& layout() const { return layout_; }
  GlooLinks& links() { return *links_; }
  const GlooMemory& memory() const { return *memory_; }
  Rendezvous& rendezvous() { return rendezvous_; }  // Of the local ranks, by place.

  // Returns the error of the group. After an error it first waits until the connections are closed.
  absl::Status status();
  // Fails the group with `reason`, unless it has failed already. Returns when the connections are closed.
  void Fail(absl::Status reason);

  // The first local rank calls Begin and End around each collective. From Begin on, the deadline of `number` runs.
  absl::Status Begin(uint64_t number, const CollectiveWish& wish);
  void End();

  // Wait for one message, in the thread of the rank at `place`. If the deadline passes, the group fails, and `missing`
  // names the ranks whose message is missing. Return the group's error after any failure.
  absl::Status AwaitReceived(int place, GlooBuffer& buffer, absl::FunctionRef<std::string()> missing);
  absl::Status AwaitSent(int place, GlooBuffer& buffer, absl::FunctionRef<std::string()> missing);
  // Waits in the same way until another process, which counts `word` up and wakes its futex, has come to `value`.
  absl::Status AwaitCount(int place, uint32_t& word, uint32_t value, absl::FunctionRef<std::string()> missing);
  // Turns the error of a call of GlooLinks into the group's error.
  absl::Status Explain(const absl::Status& error);

  // Tells the peers that a local rank takes part in no collective after its first `collectives`.
  void Leave(int rank, uint64_t collectives);

 private:
  absl::Status Await(int slot, GlooBuffer& buffer, absl::FunctionRef<bool()> wait,
                     absl::FunctionRef<std::string()> missing);
  // Returns the group's error after a wait that ended with `waited` before what it waited for.
  absl::Status Unsuccessful(int slot, const absl::Status& waited, absl::FunctionRef<std::string()> missing);
  bool EnterWait(int slot, GlooBuffer* buffer);
  void LeaveWait(int slot);
  void Wake();         // Ends the waits of the local ranks. REQUIRES: mutex_ is held.
  void WakeNotices();  // Ends the wait of TakeNotices. REQUIRES: mutex_ is held.
  void Tell(const GlooNotice& notice);
  void TakeNotices();
  void TakeNotice(const GlooNotice& notice, int process);
  void Watch();
  bool Ending() const;          // REQUIRES: mutex_ is held.
  std::string Current() const;  // Describes the collective that runs. REQUIRES: mutex_ is held.

  const GlooLayout layout_;
  const std::unique_ptr<GlooLinks> links_;
  const std::unique_ptr<GlooMemory> memory_;
  const double timeout_seconds_;
  Rendezvous rendezvous_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // The fields below are guarded by mutex_.
  absl::Status status_;
  absl::Status noticed_;              // The failure that a peer has told. Does not change after that.
  bool closed_ = false;               // The connections are closed after a failure.
  bool stopping_ = false;             // The group is being destroyed.
  bool expired_ = false;              // The deadline of the collective has passed, here or for a peer.
  std::vector<GlooBuffer*> awaited_;  // What each local rank waits for, by place, and what TakeNotices does.
  uint64_t running_ = 0;              // The collective that runs. 0: none.
  uint64_t begun_ = 0;                // Collectives so far.
  CollectiveWish wish_;               // That of collective `begun_`.
  Deadline deadline_;                 // That of collective `running_`.
  int left_rank_ = -1;                // The rank that left after the fewest collectives. -1: none has left.
  uint64_t left_after_ = std::numeric_limits<uint64_t>::max();
  bool told_ = false;            // The peers have been told that a rank of this process has left.
  std::vector<bool> left_;       // By process, whether one of its ranks has left.
  std::vector<int> lost_ticks_;  // By process, for how many ticks of Watch its connection is lost.

  std::vector<std::unique_ptr<GlooBuffer>> watched_;  // Of Watch, by process. Used by Gloo until the links are closed.
  std::thread notices_, watch_;
};

}  // namespace shale
