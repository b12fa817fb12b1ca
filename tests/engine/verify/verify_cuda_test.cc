// Verify on the CUDA backend, whose kernels run on the host here.
#include <gmock/gmock.h>

#include <memory>

#include "absl/strings/match.h"
#include "tests/engine/tested_backend.h"
#include "tests/engine/train/own_data.h"
#include "tests/engine/verify/verify_jobs.h"

namespace shale::testing {
namespace {

TEST(VerifyOnCuda, FindsNothingWrong) {
  const std::unique_ptr<Backend> backend = TestedBackend(OpsKind::kFast, /*threads=*/1);
  for (const char* settings : {"runtime={device: CUDA graphs: true}", "runtime={device: CUDA ranks_per_device: 2}"}) {
    MadeUpData data(Describe(/*weighted=*/false));
    const bool graphs = absl::StrContains(settings, "graphs");
    const Job job = MakeJob(
        "model { decoder { width: 16 layers: 2 heads: 2 hidden: 24 init_std: 0.2 } }",
        {settings, graphs ? "memory.offload_state=MOMENTS" : "sharding.ranks=2", "memory.budget_bytes=10000000"});
    const VerifyReport report =
        MustVerify(job, {.backend = backend.get(), .data = &data, .seconds = 1e-6});  // Gradients of one parameter.
    EXPECT_THAT(Failures(report), ::testing::IsEmpty());
    EXPECT_EQ(report.rows.size(), 13);
  }
}

}  // namespace
}  // namespace shale::testing
