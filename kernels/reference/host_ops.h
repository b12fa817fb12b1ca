// HostOps: the base class of backends whose kernels run on the host, on a thread of a stream. These are the reference
// and the fast CPU backend.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_backend.h"

namespace shale {

class HostOps : public Ops {
 public:
  // Runs a bound and valid op to completion on the calling thread (and on helper threads, if the backend has any). The
  // threads of several streams may call it at the same time. Returns OutOfRange for a token or target that is out of
  // range, and never uses it as an address.
  virtual absl::Status Run(const Op& op, Scratch scratch) const = 0;

  const Ops* host() const final { return this; }

 protected:
  // Operands must be in host memory. `stream` may be of any device. This object must outlive the work that it enqueues,
  // and the graphs that capture it.
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) final;
};

}  // namespace shale
