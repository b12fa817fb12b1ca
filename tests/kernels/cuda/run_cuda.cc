#include "tests/kernels/cuda/run_cuda.h"

#include <cmath>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/kernels/op_rig.h"

namespace shale::testing {

absl::Status RunOnCuda(const TestMemory& memory, const Op& op, std::vector<std::byte>& image) {
  int backends = 0;
  for (const auto& rig : OpRigs()) {
    if (rig->family() != "cuda") continue;
    std::vector<std::byte> got;
    SHALE_RETURN_IF_ERROR(rig->Run(memory, op, got));
    if (++backends == 1) {
      image = std::move(got);
    } else {
      EXPECT_TRUE(got == image) << "other bits on " << rig->name();
    }
  }
  EXPECT_GT(backends, 0) << "the program links no CUDA backend";
  return absl::OkStatus();
}

void ExpectNear(const TestMemory& memory, const Tensor& t, std::vector<std::byte>& got, std::vector<std::byte>& want,
                const Tolerance& tolerance) {
  const Tensor g = memory.Bind(t, got.data()), w = memory.Bind(t, want.data());
  int failures = 0;
  for (int64_t i = 0; i < t.elements() && failures < 3; ++i) {
    const double is = ElementOf(g, i), wanted = ElementOf(w, i);
    const double unit = SizeOf(t.dtype) == 2 ? 2 * UnitOf(t.dtype) : 0;
    if (is == wanted || (std::isnan(wanted) && std::isnan(is))) continue;
    if (std::abs(is - wanted) <= tolerance.absolute + (tolerance.relative + unit) * std::abs(wanted)) continue;
    ADD_FAILURE() << "element " << i << " is " << is << ", wanted " << wanted;
    ++failures;
  }
}

void ExpectMatchesReference(const TestMemory& memory, const Op& op, const Tolerance& tolerance, int runs) {
  std::vector<std::byte> want = RunOnReference(memory, op), first;
  for (int run = 0; run < runs; ++run) {
    std::vector<std::byte> got;
    const absl::Status status = RunOnCuda(memory, op, got);
    ASSERT_TRUE(status.ok()) << status;
    if (run == 0) first = got;
    EXPECT_TRUE(got == first) << "other bits in another order";
  }
  VisitOperands(op, [&](absl::string_view name, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    SCOPED_TRACE(std::string(name.data(), name.size()));
    ExpectNear(memory, t, first, want, tolerance);
    // All other bytes must be as they were: clears the outputs in both images, which are compared below.
    for (auto* image : {&first, &want}) {
      const Tensor bound = memory.Bind(t, image->data());
      for (int64_t i = 0; i < t.elements(); ++i) SetElement(bound, i, 0);
    }
  });
  EXPECT_TRUE(first == want) << "bytes changed that are no output's";
}

}  // namespace shale::testing
