// Verify on the CUDA backend, whose kernels run on the host here.
#include <gmock/gmock.h>

#include <memory>

#include "tests/engine/run/train/own_data.h"
#include "tests/engine/run/verify/verify_jobs.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

TEST(VerifyOnCuda, FindsNothingWrong) {
  const std::unique_ptr<Backend> backend = TestedBackend(OpsKind::kFast, /*threads=*/1);
  MadeUpData data(Describe(/*weighted=*/false));
  // Two ranks run in the check of ranks only. They share the device, and run no graphs.
  const Job job = MakeJob(kDecoder, {"runtime={device: CUDA ranks_per_device: 2 graphs: true}",
                                     "memory={offload_state: MOMENTS budget_bytes: 10000000}", "batch.micro_batch=1"});
  const VerifyReport report =
      MustVerify(job, {.backend = backend.get(), .data = &data, .seconds = 1e-6});  // Gradients of one parameter.
  ASSERT_EQ(report.rows.size(), 13);
  for (const VerifyRow& row : report.rows) EXPECT_EQ(row.outcome, VerifyOutcome::kHolds) << row.check << row.remark;
}

}  // namespace
}  // namespace shale::testing
