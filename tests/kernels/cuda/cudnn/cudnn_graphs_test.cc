// Tests the library itself, where it is installed: it has kernels for everything that we say it takes, in the workspace
// that the committed table says. Needs no GPU: the library gets a description of one in JSON, and finds a stand-in
// driver.
#include "kernels/cuda/cudnn/cudnn_graphs.h"

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"
#include "tests/kernels/cuda/cudnn/library_without_gpu.h"
#include "tests/kernels/cuda/cudnn/workspace_table.h"

namespace shale::cuda {
namespace {

using ::testing::AllOf;
using testing::DescribedGpu;
using testing::ForwardOf;
using ::testing::HasSubstr;
using testing::kDescribedGpus;
using testing::kH200;
using testing::LoadCudnnFor;
using testing::NeededBytes;
using testing::SymbolicAttention;
using testing::WorkspaceRow;

class CudnnGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = LoadCudnnFor(kH200);
    if (loaded.status().code() == absl::StatusCode::kNotFound) GTEST_SKIP() << loaded.status();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    hopper_ = *std::move(loaded);
  }

  std::unique_ptr<CudnnGraphs> hopper_;
};

TEST_F(CudnnGraphsTest, AnEnvironmentThatChangesItsAlgorithmsIsRefused) {
  constexpr const char* kLimit = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  setenv(kLimit, "0", /*overwrite=*/1);
  const absl::Status status = LoadCudnnFor(kH200).status();
  unsetenv(kLimit);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=0 is set"));
}

TEST_F(CudnnGraphsTest, WhatItTakesHasAKernelInTheWorkspaceOfTheTable) {
  const auto table = testing::ReadCommittedTable();
  ASSERT_TRUE(table.ok()) << table.status();
  const std::string version = hopper_->version();
  // These versions have no deterministic backward for compute capability 10.
  const bool without_10 = absl::StartsWith(version, "9.16.") || absl::StartsWith(version, "9.17.");
  size_t asked = 0;
  std::set<std::string> questions;
  for (const DescribedGpu& gpu : kDescribedGpus) {
    if (without_10 && gpu.major == 10) continue;
    const auto graphs = LoadCudnnFor(gpu);
    ASSERT_TRUE(graphs.ok()) << gpu.name << ": " << graphs.status();
    for (const WorkspaceRow& row : table->rows) {
      if (row.compute_major != gpu.major || row.compute_minor != gpu.minor) continue;
      // The gap between rows must not matter.
      const AttentionKey key = KeyOf(row, /*gap=*/asked++ % 2 == 0 ? 0 : 8);
      questions.insert(row.Question());
      const absl::StatusOr<int64_t> needed = NeededBytes(**graphs, key);
      ASSERT_TRUE(needed.ok()) << row.Question() << ": " << needed.status();
      if (version == table->version) {
        EXPECT_EQ(*needed, row.bytes) << gpu.name << " " << row.Question();
      } else {
        EXPECT_LE(*needed, WorkspaceBytes(key)) << gpu.name << " " << row.Question();
      }
    }
  }
  EXPECT_TRUE(without_10 || questions.size() == table->rows.size()) << questions.size();
}

TEST_F(CudnnGraphsTest, BothDirectionsAreBuiltForAModel) {
  // The shape of Qwen2.5 7B.
  const AttentionBackward op = SymbolicAttention({.batch = 2, .length = 4096, .heads = 28, .groups = 4, .width = 128});
  const auto attention = CreateCudnnAttention([&] { return std::move(hopper_); });
  absl::Status status = attention->Prepare(ForwardOf(op), attention->ScratchBytes(ForwardOf(op)));
  EXPECT_TRUE(status.ok()) << status;
  status = attention->Prepare(op, attention->ScratchBytes(op));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CudnnGraphsTest, AGraphTellsItsWorkspaceAndDoesNotRunWithoutAGpu) {
  const AttentionKey key = AttentionKey::Of(SymbolicAttention({.batch = 2, .length = 192, .heads = 2, .window = 17}));
  const auto graph = hopper_->Build(key, WorkspaceBytes(key));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ((*graph)->workspace_bytes(), WorkspaceBytes(key));
  EXPECT_EQ((*graph)->Enqueue({}, nullptr, nullptr).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudnnGraphsTest, RefusalsNameTheVersionAndTheAttention) {
  AttentionKey key = AttentionKey::Of(SymbolicAttention({.batch = 2, .length = 192, .heads = 2}));
  absl::Status status = hopper_->Build(key, /*workspace_bytes=*/1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cuDNN " + hopper_->version() + ", check_support with 1000 bytes"),
                    HasSubstr("for attention backward B=2 S=192 H=2 G=1 D=64")));
  key.width = 60;
  status = hopper_->Build(key, WorkspaceBytes(key)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("D=60"));
}

TEST_F(CudnnGraphsTest, WhatIsNoGpuIsRefused) {
  for (const char* json : {"{}", "[", "H200"}) {
    const absl::Status status = LoadCudnn({.compute_major = 9, .device_json = json}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

}  // namespace
}  // namespace shale::cuda
