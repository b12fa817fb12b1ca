// What the ops of one backend run on in tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/op_backend.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// A backend's device, ops and one stream. Host memory is pinned, as copies of a training step have it.
class OpRig {
 public:
  explicit OpRig(const TestBackend& backend);

  const std::string& name() const { return backend_.name; }
  const std::string& family() const { return backend_.family; }

  // Runs a symbolic op on a copy of `memory` with scratch full of NaNs; `image` becomes what the memory is afterwards.
  // Also an error: the red zones around scratch were written. An error is that of this run alone.
  absl::Status Run(const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image);

 private:
  // Bytes of the host that have a place on the device.
  struct Piece {
    std::byte* device;
    int64_t begin, size_bytes;  // On the host, in staging_.
  };
  // Where an op's operands lie.
  struct Placement {
    std::vector<Piece> pieces;
    Op op;
    Scratch scratch;
    std::unique_ptr<Arena> arena;
    std::vector<std::shared_ptr<std::byte>> allocations;
  };

  absl::Status RunOnce(const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image);
  absl::StatusOr<Placement> PlaceTogether(const TestMemory& memory, const Op& symbolic, int64_t scratch_begin,
                                          int64_t scratch_bytes, int64_t total_bytes);
  absl::StatusOr<Placement> PlaceApart(const TestMemory& memory, const Op& symbolic, int64_t scratch_begin,
                                       int64_t scratch_bytes);

  const TestBackend backend_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> staging_;  // Grows.
};

// One per backend for the whole test program, as for a rank; never destroyed.
const std::vector<std::unique_ptr<OpRig>>& OpRigs();

}  // namespace shale::testing
