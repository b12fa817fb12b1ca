// Runs our kernels on the host: against the fp64 reference, and with their barriers taken out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Runs `op` on fresh memory, with scratch that is full of NaNs, and returns the image afterwards.
template <class OpType>
absl::Status RunKernel(const TestMemory& memory, const OpType& op, cuda_on_host::Stream& stream,
                       std::vector<std::byte>& image) {
  const AlignedBytes bytes(memory.image());
  const Op bound = memory.Bind(op, bytes.data());
  SHALE_RETURN_IF_ERROR(Validate(bound));
  const int64_t scratch_bytes = cuda::ScratchBytesOf(op);
  const AlignedBytes scratch(std::vector<std::byte>(std::max<int64_t>(1, scratch_bytes), std::byte{0xFF}));
  const absl::Status status = cuda::Run(std::get<OpType>(bound), Scratch{scratch.data(), scratch_bytes}, &stream);
  image.assign(bytes.data(), bytes.data() + memory.image().size());
  return status;
}

// |got - want| <= tolerance |want| + absolute, one bf16 unit in the last place more where that is stored.
inline void ExpectNear(const TestMemory& memory, const Tensor& t, std::vector<std::byte>& got,
                       std::vector<std::byte>& want, const Tolerance& tolerance) {
  const Tensor g = memory.Bind(t, got.data()), w = memory.Bind(t, want.data());
  int failures = 0;
  for (int64_t i = 0; i < t.elements() && failures < 3; ++i) {
    const double is = ElementOf(g, i), wanted = ElementOf(w, i);
    const double unit = t.dtype == DType::kBFloat16 ? 2 * kUnit16 : 0;
    if (std::isnan(wanted) && std::isnan(is)) continue;
    if (std::abs(is - wanted) <= tolerance.absolute + (tolerance.relative + unit) * std::abs(wanted)) continue;
    ADD_FAILURE() << "element " << i << " is " << is << ", wanted " << wanted;
    ++failures;
  }
}

// That the kernel agrees with the reference, has the same bits in every order, and changes only its outputs.
template <class OpType>
void ExpectMatchesReference(const TestMemory& memory, const OpType& op, const Tolerance& tolerance, int seeds) {
  std::vector<std::byte> want = RunOnReference(memory, op), first;
  for (int seed = 0; seed < seeds; ++seed) {
    cuda_on_host::Stream stream{.seed = static_cast<uint64_t>(seed)};
    std::vector<std::byte> got;
    const absl::Status status = RunKernel(memory, op, stream, got);
    ASSERT_TRUE(status.ok()) << status;
    if (seed == 0) first = got;
    EXPECT_TRUE(got == first) << "other bits in another order";
  }
  VisitOperands(Op(op), [&](absl::string_view name, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    SCOPED_TRACE(std::string(name.data(), name.size()));
    ExpectNear(memory, t, first, want, tolerance);
    // What is left must be as it was: take the reference's outputs out of both.
    for (auto* image : {&first, &want}) {
      const Tensor bound = memory.Bind(t, image->data());
      for (int64_t i = 0; i < t.elements(); ++i) SetElement(bound, i, 0);
    }
  });
  EXPECT_TRUE(first == want) << "bytes changed that are no output's";
}

// The mutation: each of the `barriers` that the kernel has is taken out in turn, and missed in every order.
template <class OpType>
void ExpectNeedsEachOfItsBarriers(const TestMemory& memory, const OpType& op, size_t barriers) {
  std::vector<std::byte> image;
  cuda_on_host::Stream whole;
  const absl::Status status = RunKernel(memory, op, whole, image);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(whole.barriers.size(), barriers);
  for (const cuda_on_host::Site& site : whole.barriers) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      cuda_on_host::Stream stream{.seed = seed, .without_barrier = site};
      const absl::Status mutated = RunKernel(memory, op, stream, image);
      EXPECT_EQ(mutated.code(), absl::StatusCode::kFailedPrecondition) << "line " << site.line << ": " << mutated;
    }
  }
}

}  // namespace shale::testing
