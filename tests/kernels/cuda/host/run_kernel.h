// Runs our kernels on the host with their barriers removed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/host/stream.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Runs `op` on fresh memory, with scratch that is full of NaNs. Stores the memory image afterwards in `image`.
template <class OpType>
absl::Status RunKernel(const TestMemory& memory, const OpType& op, cuda_on_host::Stream& stream,
                       std::vector<std::byte>& image) {
  const AlignedBytes bytes(memory.image());
  const Op bound = memory.Bind(op, bytes.data());
  SHALE_RETURN_IF_ERROR(Validate(bound));
  const int64_t scratch_bytes = cuda::ScratchBytesOf(op);
  const AlignedBytes scratch(std::vector<std::byte>(std::max<int64_t>(1, scratch_bytes), std::byte{0xFF}));
  const absl::Status status = cuda::Run(*bound.As<OpType>(), Scratch{scratch.data(), scratch_bytes}, &stream);
  image.assign(bytes.data(), bytes.data() + memory.image().size());
  return status;
}

// Expects that the kernel has this many `barriers`. Removes each of them in turn, and expects that this is reported in
// every order of threads.
template <class OpType>
void ExpectNeedsEachOfItsBarriers(const TestMemory& memory, const OpType& op, size_t barriers) {
  std::vector<std::byte> image;
  cuda_on_host::Stream whole;
  const absl::Status status = RunKernel(memory, op, whole, image);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(whole.barriers.size(), barriers);
  for (const cuda_on_host::Site& site : whole.barriers) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const auto order = seed % 2 == 0 ? cuda_on_host::ThreadOrder::kTurns : cuda_on_host::ThreadOrder::kWarpsAhead;
      cuda_on_host::Stream stream{.seed = seed, .order = order, .without_barrier = site};
      const absl::Status mutated = RunKernel(memory, op, stream, image);
      EXPECT_EQ(mutated.code(), absl::StatusCode::kFailedPrecondition) << "line " << site.line << ": " << mutated;
    }
  }
}

}  // namespace shale::testing
