// Small jobs on the CUDA backend without a GPU, for tests of what a run says and takes.
#pragma once

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/run/backends/cuda_backend.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_matmuls.h"

namespace shale::testing {

// Returns the options of a backend whose matmuls the reference computes.
inline CudaBackendOptions OnReference(int ranks_per_device) {
  CudaBackendOptions options{.ranks_per_device = ranks_per_device};
  options.create_matmuls = [](const CudaDeviceProperties* /*gpu*/) {
    return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps());
  };
  return options;
}

class CudaJobs : public ::testing::Test {
 protected:
  CudaJobs() : text_(absl::StrCat(::testing::TempDir(), "/cuda_job.", getpid(), ".txt")) {
    std::ofstream text(text_);
    for (int i = 0; i < 40; ++i) text << "the " << i * i % 97 << " quick brown foxes jump over the dog.\n";
  }

  // Returns a job of two ranks and four steps.
  Job MakeJob(const std::vector<std::string>& overrides) const {
    absl::StatusOr<Job> job = ParseJobText(absl::StrCat(R"(
model { decoder { family: LLAMA width: 16 layers: 2 heads: 2 kv_heads: 1 hidden: 24 } }
batch { global_batch: 5 micro_batch: 1 sequence_length: 9 }
sharding { ranks: 2 accumulation: SHARDED }
lr_schedule { steps: 4 }
data { path: ")",
                                                        text_, "\" }\n"),
                                           "job.textproto", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

 private:
  const std::string text_;
};

}  // namespace shale::testing
