// HostOps: ops whose kernels run on the thread of a CPU stream. Base class of the reference and of the fast CPU
// backend.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_backend.h"

namespace shale {

class HostOps : public Ops {
 public:
  // Runs a bound and valid op to completion on the calling thread (and on helper threads, if the backend has any).
  // Called from the threads of several streams at the same time. Returns OutOfRange for a token or target out of range,
  // which is never used as an address.
  virtual absl::Status Run(const Op& op, Scratch scratch) const = 0;

 protected:
  // `stream` must be a CpuStream. This object must outlive the work that it enqueues.
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) final;
};

}  // namespace shale
