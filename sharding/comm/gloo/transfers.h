// GlooTransfers: what one rank sends and receives in one collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sharding/comm/gloo/group.h"

namespace shale {

// Refers to the memory of the collective. After an error of any function the connections are closed, and nothing is
// used any more. Otherwise destroy it after AwaitSent.
class GlooTransfers {
 public:
  GlooTransfers(GlooGroup& group, int rank, uint64_t number, const CollectiveWish& wish)
      : group_(group), rank_(rank), number_(number), wish_(wish), sending_(group.layout().processes()) {}

  // Send a part of `memory` to rank `to`, or to all ranks of a process. `memory` and its `size_bytes` are the same in
  // all calls, and must stay valid until AwaitSent.
  absl::Status Send(int to, const std::byte* memory, int64_t size_bytes, int64_t offset, int64_t count_bytes);
  absl::Status SendToAll(int process, const std::byte* memory, int64_t size_bytes, int64_t offset, int64_t count_bytes);
  // Receive into `buffer` what rank `from` sends to this rank, or to all ranks of its process.
  absl::Status Receive(int from, GlooBuffer& buffer, int64_t offset, int64_t count_bytes);
  absl::Status ReceiveForAll(int from, GlooBuffer& buffer, int64_t offset, int64_t count_bytes);

  // Wait for one message of rank `from` in `buffer`, and until all that was sent has been taken.
  absl::Status AwaitReceived(int from, GlooBuffer& buffer);
  absl::Status AwaitSent();

 private:
  // What is sent to one process.
  struct Sending {
    std::unique_ptr<GlooBuffer> buffer;
    int messages = 0;
  };
  absl::Status SendTo(int process, int to, const std::byte* memory, int64_t size_bytes, int64_t offset,
                      int64_t count_bytes);
  absl::Status ReceiveFrom(int from, int to, GlooBuffer& buffer, int64_t offset, int64_t count_bytes);
  int place() const { return group_.layout().place_of(rank_); }

  GlooGroup& group_;
  const int rank_;
  const uint64_t number_;
  const CollectiveWish wish_;
  std::vector<Sending> sending_;  // By process.
};

}  // namespace shale
