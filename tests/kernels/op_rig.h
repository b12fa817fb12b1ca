// Runs the ops of one backend in tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/op_backend.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Owns a backend's device, its ops and one stream. Host memory is pinned, as it is for the copies of a training step.
class OpRig {
 public:
  explicit OpRig(const TestBackend& backend);

  const std::string& name() const { return backend_.name; }
  const std::string& family() const { return backend_.family; }

  // Runs a symbolic op on a copy of `memory`, with scratch full of NaNs. Stores the memory afterwards in `image`.
  // Returns an error also if the red zones around scratch were written. An error does not affect later runs.
  absl::Status Run(const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image);

 private:
  // A range of host bytes, and its place on the device.
  struct Piece {
    std::byte* device;
    int64_t begin, size_bytes;  // The range in staging_.
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
  std::unique_ptr<Arena> staging_;  // Grows as needed.
};

// Returns one rig per backend, which the whole test program shares. Rigs are never destroyed.
const std::vector<std::unique_ptr<OpRig>>& OpRigs();

}  // namespace shale::testing
