// GlooLinks: the connections of this process with the other processes of a group.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "sharding/comm/gloo/layout.h"
#include "sharding/comm/store.h"

namespace shale {

// Memory that messages are sent from or received into. Its waits throw exceptions, like all of Gloo.
using GlooBuffer = gloo::transport::UnboundBuffer;

// Gloo's own time-outs close all connections, so waits get this one, and GlooGroup ends them.
inline constexpr std::chrono::hours kGlooForever{24 * 365};

// Returns Unavailable with Gloo's message if `call` throws.
absl::Status CallGloo(absl::FunctionRef<void()> call);

// Keeps the calling thread from dying of SIGPIPE when it writes to a peer that has ended. Other handlers of the program
// are left as they are.
class NoBrokenPipes {
 public:
  NoBrokenPipes();
  ~NoBrokenPipes();
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

// Thread-safe. Processes are those of the layout. Messages with the same tag between two processes keep their order.
// Callers must hold a NoBrokenPipes.
class GlooLinks {
 public:
  // Waits for all other processes. `what` names the group in the store.
  static absl::StatusOr<std::unique_ptr<GlooLinks>> Connect(Store& store, const GlooLayout& layout,
                                                            const GlooMembers& members, const GlooOptions& options);
  ~GlooLinks() { Close(); }

  std::unique_ptr<GlooBuffer> Wrap(const void* memory, int64_t size_bytes);

  // Begin to send and receive. They fail if the connection is lost or closed. A sender may send less than the receiver
  // has room for, but not more: Gloo would end the receiver's process.
  absl::Status Send(GlooBuffer& from, int process, uint64_t tag, int64_t offset, int64_t size_bytes);
  absl::Status Receive(GlooBuffer& into, int process, uint64_t tag, int64_t offset, int64_t size_bytes);
  absl::Status ReceiveFromAny(GlooBuffer& into, const std::vector<int>& processes, uint64_t tag, int64_t size_bytes);
  // Returns whether the connection is lost or closed.
  bool IsLost(int process);

  // Closes all connections, after what was sent. When it returns, Gloo does not use the memory of any buffer any more.
  void Close();

 private:
  GlooLinks() = default;
  absl::Status Open(const std::string& address, const GlooLayout& layout, double timeout_seconds);
  absl::Status Transfer(absl::FunctionRef<void()> begin);

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::unique_ptr<GlooBuffer> nothing_;  // Of no bytes, for IsLost.
  std::vector<int> peers_;
  std::shared_mutex mutex_;  // Held exclusively to close connections, and shared to use them.
  bool closed_ = false;      // Guarded by mutex_.
};

}  // namespace shale
