// Tests that a run asks cuBLASLt for all its algorithms, and launches each once, before its GPU's memory is checked.
#include <memory>
#include <string>
#include <vector>

#include "engine/api/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"
#include "tests/engine/cuda/cuda_jobs.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale::testing {
namespace {

using CudaHeuristicsTest = CudaJobs;

TEST_F(CudaHeuristicsTest, NoneIsAskedForAfterTheWarmUp) {
  for (const char* graphs : {"runtime.graphs=false", "runtime.graphs=true"}) {
    for (const char* precision : {"precision.compute=FP32", "precision.compute=BF16"}) {
      SCOPED_TRACE(std::string(graphs) + " " + precision);
      // Every matmul is computed by a proposal that follows one which the library itself refuses.
      CublasLtStandIn library;
      library.algorithms = 4;
      library.refused = library.oversized = 1;
      const auto runtime = std::make_shared<cuda_on_host::StandInRuntime>();
      library.load_module = [&] { return runtime->LoadModule("a matmul"); };
      CudaBackendOptions options;
      options.create_matmuls = [&](const CudaDeviceProperties*) {
        return cuda::CreateCublasLtMatMuls([&] { return library.functions(); }, {.workspace_bytes = 4096});
      };
      // Asked for after the warm-up, before memory is checked.
      size_t asked = 0, launched = 0;
      options.describe_libraries = [&] {
        asked = library.queries.size();
        launched = library.launched.size();
        return std::string();
      };
      const auto backend = CreateCudaBackend(runtime, std::move(options));
      // The chunks of the loss do not begin at multiples of 256 bytes.
      const Job job = MakeJob({"runtime.device=CUDA", "sharding.ranks=1", "memory.budget_bytes=100000000",
                               "data.evaluation_fraction=0.2", "memory.loss_chunk_tokens=3", graphs, precision});
      auto trainer = Trainer::Create(job, {.backend = backend.get()});
      ASSERT_TRUE(trainer.ok()) << trainer.status() << " " << library.misuse;
      runtime->ForbidTaking();
      const absl::Status status = (*trainer)->Run({});
      EXPECT_TRUE(status.ok()) << status << " " << library.misuse;
      EXPECT_GT(asked, 10);
      EXPECT_EQ(library.queries.size() - asked, 0);
      EXPECT_EQ(library.launched.size() - launched, 0);
      EXPECT_THAT(runtime->misuse(), ::testing::IsEmpty());
    }
  }
}

}  // namespace
}  // namespace shale::testing
