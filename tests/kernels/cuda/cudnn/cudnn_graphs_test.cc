// The library itself, where it is installed: it has kernels for what we say that it takes, in the workspace that we say
// it needs. No GPU: it is told of one in JSON, and finds a driver that stands in.
//
// Built with SHALE_SWEEP (cudnn_workspace_sweep), the same for many more shapes and GPUs.
#include "kernels/cuda/cudnn/cudnn_graphs.h"

#include <dlfcn.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"

namespace shale::cuda {
namespace {

using testing::AttentionShape;
using testing::DescribedGpu;
using testing::ForwardOf;
using testing::kH200;
using testing::SymbolicAttention;
using ::testing::AllOf;
using ::testing::HasSubstr;

#ifdef SHALE_SWEEP
constexpr int kShapes = 400;
#else
constexpr int kShapes = 25;
#endif

constexpr DescribedGpu kGpus[] = {
    kH200,
    {"A100", 8, 0, 108, 32, 2048, 166912},
#ifdef SHALE_SWEEP
    {"A10", 8, 6, 72, 16, 1536, 101376},
    {"L40S", 8, 9, 142, 24, 1536, 101376},
    {"B200", 10, 0, 148, 32, 2048, 232448},
    {"B300", 10, 3, 148, 32, 2048, 232448},
    {"RTX 5090", 12, 0, 170, 24, 1536, 101376},
#endif
};

class CudnnGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Before cuDNN asks for a library of this name, and gets it.
    ASSERT_NE(dlopen("tests/kernels/cuda/cudnn/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    auto loaded = Load(kH200);
    if (loaded.status().code() == absl::StatusCode::kNotFound) GTEST_SKIP() << loaded.status();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    hopper_ = *std::move(loaded);
  }

  static absl::StatusOr<std::unique_ptr<CudnnGraphs>> Load(const DescribedGpu& gpu) {
    return LoadCudnn({.search = LibrarySearch::FromEnvironment(),
                      .compute_major = gpu.major,
                      .compute_minor = gpu.minor,
                      .device_json = JsonOf(gpu)});
  }

  std::unique_ptr<CudnnGraphs> hopper_;
};

// Awkward sizes and those of models.
std::vector<AttentionBackward> Shapes() {
  std::mt19937 random(7);
  const auto any = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  std::vector<AttentionBackward> ops;
  while (ops.size() < kShapes) {
    AttentionShape shape = {.batch = any({1, 2, 3, 8}),
                            .length = any({4, 12, 60, 64, 68, 100, 128, 132, 192, 196, 256, 1000, 1024, 2048, 4096}),
                            .groups = any({1, 2, 4, 7}),
                            .width = any({64, 96, 128}),
                            .window = any({0, 0, 0, 1, 17, 128, 1024}),
                            .gap = any({0, 8})};
    shape.heads = shape.groups * any({1, 2, 7});
    const AttentionBackward op = SymbolicAttention(shape);
    if (TakenByCudnn(op)) ops.push_back(op);
  }
  return ops;
}

// The workspace of the kernel that cuDNN likes best, from its answer when it may have none at all: "Requires <bytes>"
// of each kernel in turn, to which the frontend adds rowsum(d_out * out). -1: it has no kernel.
int64_t NeededBytes(CudnnGraphs& graphs, const AttentionKey& key) {
  const std::string answer(graphs.Supports(key, /*workspace_bytes=*/-1).message());
  const size_t at = answer.find("Requires ");
  if (at == std::string::npos) return -1;
  return std::stoll(answer.substr(at + 9)) + (key.backward ? 4 * key.batch * key.heads * key.length : 0);
}

TEST_F(CudnnGraphsTest, AnEnvironmentThatChangesItsAlgorithmsIsRefused) {
  constexpr const char* kLimit = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  setenv(kLimit, "0", /*overwrite=*/1);
  const absl::Status status = Load(kGpus[0]).status();
  unsetenv(kLimit);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=0 is set"));
}

TEST_F(CudnnGraphsTest, WhatItTakesHasAKernelInThePlannedWorkspace) {
  for (const DescribedGpu& gpu : kGpus) {
    SCOPED_TRACE(gpu.name);
    const auto graphs = Load(gpu);
    ASSERT_TRUE(graphs.ok()) << graphs.status();
    for (const AttentionBackward& op : Shapes()) {
      for (const AttentionKey& key : {AttentionKey::Of(op), AttentionKey::Of(ForwardOf(op))}) {
        const int64_t needed = NeededBytes(**graphs, key);
        EXPECT_GE(needed, 0) << key.ToString();
        EXPECT_LE(needed, WorkspaceBytes(key)) << key.ToString();
        // Nothing is wasted there, but for short sequences of grouped heads: see WorkspaceBytes.
        const bool is_short = key.groups < key.heads && key.length <= 128;
        EXPECT_TRUE(needed == WorkspaceBytes(key) || gpu.major != 9 || is_short) << needed << ", " << key.ToString();
      }
    }
  }
}

TEST_F(CudnnGraphsTest, BothDirectionsAreBuiltForAModel) {
  // Qwen2.5 7B.
  const AttentionBackward op =
      SymbolicAttention({.batch = 2, .length = 4096, .heads = 28, .groups = 4, .width = 128});
  const auto attention = CreateCudnnAttention([&] { return std::move(hopper_); });
  absl::Status status = attention->Prepare(ForwardOf(op));
  EXPECT_TRUE(status.ok()) << status;
  status = attention->Prepare(op);
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
