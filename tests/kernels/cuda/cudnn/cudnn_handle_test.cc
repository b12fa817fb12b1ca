// Tests which stream cuDNN's handle has when it is used. A handle keeps its stream, which may have been destroyed
// since: the runs at the start of a job, for example, have streams of their own.
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"

namespace shale::testing {
namespace {

using ::testing::StartsWith;

TEST(CudnnHandleTest, HasNoStreamWhenAGraphIsBuiltOrTheHandleDestroyed) {
  const std::filesystem::path here = std::filesystem::absolute("tests/kernels/cuda/cudnn");
  auto graphs = cuda::LoadCudnn(
      {.search = {.folders = {here / "nvrtc_alone", here / "handle"}, .cuda_home = "", .loader_path = false},
       .compute_major = 9});
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  void* const library = dlopen((here / "handle/libcudnn.so.9").c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const calls = reinterpret_cast<const char* (*)()>(dlsym(library, "shale_cudnn_calls"));
  ASSERT_NE(calls, nullptr);

  const cuda::AttentionKey key = cuda::AttentionKey::Of(SymbolicAttention({.batch = 2, .length = 64, .heads = 2}));
  EXPECT_FALSE((*graphs)->Build(key, cuda::WorkspaceBytes(key)).ok());
  const std::string building = calls();
  EXPECT_THAT(building, StartsWith("create, no stream, descriptor"));
  graphs->reset();
  EXPECT_EQ(std::string(calls()), building + ", no stream, destroy");
}

}  // namespace
}  // namespace shale::testing
