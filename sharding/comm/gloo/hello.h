// GlooHello: the message with which each process tells the others what its ranks want. It also carries the operands of
// small collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sharding/comm/gloo/group.h"

namespace shale {

// Exchanges the messages of one collective after another: on boards, if processes read one another's memory, and
// otherwise over the connections. Used by the thread of the first local rank; the other local ranks may read data()
// between Await and the end of the collective.
class GlooHello {
 public:
  // A collective is small if the operands of each process take no more than this.
  static constexpr int64_t kMostBytes = 4096;

  explicit GlooHello(GlooGroup& group);
  // Makes room for the first message of every other process. Call it once, before Send.
  absl::Status Begin();

  // Returns memory for the operands of this process, which Send sends.
  std::byte* mine() { return mine_.data() + kHeaderBytes; }
  // Sends what this process wants in collective `number` (from 1), with `size_bytes` of operands. Fails like Await. All
  // processes send equally many messages in a collective.
  absl::Status Send(uint64_t number, const CollectiveWish& wish, int64_t size_bytes);
  // Waits for the messages of all other processes. Fails the group if they want something else. Returns the group's
  // error after any failure.
  absl::Status Await();
  // Returns the operands of another process. Valid until the next Send.
  const std::byte* data(int process) const { return Slot(sequence_, process) + kHeaderBytes; }

 private:
  struct Header;
  static constexpr int64_t kCountBytes = 64;  // At the begin of a board: how many messages have been on it.
  static constexpr int64_t kHeaderBytes = 64;
  static constexpr int64_t kSlotBytes = kHeaderBytes + kMostBytes;

  const std::byte* Slot(uint64_t sequence, int process) const;
  uint32_t& CountOf(int process) const;
  Header HeaderOf(int process) const;
  bool on_boards() const { return group_.memory().readable(); }  // Instead of sending messages over the connections.
  void Post(int64_t size_bytes);
  absl::Status Receive(uint64_t sequence);
  std::string Missing() const;

  GlooGroup& group_;
  std::vector<std::byte> mine_;
  // A peer may be one message ahead, so there is room for two.
  std::vector<std::byte> theirs_[2];
  std::unique_ptr<GlooBuffer> sent_, received_[2];
  uint64_t sequence_ = 0;  // Messages of each process so far.
  uint64_t number_ = 0;
  CollectiveWish wish_;
};

}  // namespace shale
