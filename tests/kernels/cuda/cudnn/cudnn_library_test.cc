// Tests how cuDNN is found, and the errors if it is not.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"

namespace shale::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudnnLibraryTest, AGpuThatIsTooOldIsNamed) {
  const absl::Status status = LoadCudnn({.compute_major = 7, .compute_minor = 5}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("8.0 or newer"), HasSubstr("found 7.5")));
}

// This is one test, because a library that was loaded once stays.
TEST(CudnnLibraryTest, LibrariesThatAreMissingOrTooOldAreNamedAndOthersMayBeFoundLater) {
  ASSERT_TRUE(BuiltWithCudnn().ok()) << BuiltWithCudnn();
  const std::filesystem::path here = std::filesystem::absolute("tests/kernels/cuda/cudnn");
  CudnnOptions options = {.search = {.cuda_home = "", .loader_path = false}, .compute_major = 9};
  absl::Status status = LoadCudnn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("libnvrtc.so."), HasSubstr("nvidia-cuda-nvrtc")));

  options.search.folders = {here / "nvrtc_alone"};
  status = LoadCudnn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libcudnn.so.9"), HasSubstr("nvidia-cudnn-cu"), HasSubstr("9.16.0")));

  options.search.folders.push_back(here / "too_old");
  status = LoadCudnn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("too_old/libcudnn.so.9 is version 9.15.1"), HasSubstr("cuDNN 9.16.0 or newer")));

  options.search = LibrarySearch::FromEnvironment();
  const auto loaded = LoadCudnn(options);
  // cuDNN may be installed or not, and the machine may have a GPU or not.
  if (!loaded.ok() && loaded.status().code() == absl::StatusCode::kNotFound) GTEST_SKIP() << loaded.status();
  if (!loaded.ok()) {
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()),
                AllOf(HasSubstr("cudnnCreate: CUDNN_STATUS_"), HasSubstr("it needs a GPU")));
  }
}

}  // namespace
}  // namespace shale::cuda
