// Ops whose kernels run on a CPU stream's own thread: the base of the reference and of the fast CPU backend.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_backend.h"

namespace shale {

class HostOps : public Ops {
 public:
  // Runs a bound and valid op to its end on the calling thread (and, for backends that have them, helper threads).
  // Called from the threads of several streams at once. A token or target out of range is an error, never an address.
  virtual absl::Status Run(const Op& op, Scratch scratch) const = 0;

 protected:
  // `stream` must be a CpuStream. This object must outlive what it enqueues.
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) final;
};

}  // namespace shale
