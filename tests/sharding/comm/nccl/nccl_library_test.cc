// Tests NCCL itself, which can be loaded and asked for ids without a GPU.
#include "sharding/comm/nccl/nccl_library.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibraryTest, WithoutNcclItSaysWhatToInstall) {
  const absl::Status status = LoadNccl({.folders = {"/nowhere"}, .cuda_home = "", .loader_path = false}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("wanted libnccl.so.2"), HasSubstr("/nowhere"), HasSubstr("nvidia-nccl-cu13")));
}

// NCCL keeps the address that it is given for a new communicator, and writes there when the ranks have connected. By
// then an address on the stack would belong to somebody else.
TEST(NcclLibraryTest, ANewCommunicatorsPlaceOutlivesTheCall) {
  const std::string folder = std::filesystem::current_path() / "tests/sharding/comm/nccl";
  absl::StatusOr<std::unique_ptr<NcclApi>> nccl =
      LoadNccl({.folders = {folder}, .cuda_home = "", .loader_path = false});
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  NcclComm comms[3] = {};
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ((*nccl)->CommInitRank(comms[rank], 3, NcclUniqueId(), rank), NcclResult::kInProgress);
    ASSERT_NE(comms[rank], nullptr);
  }
  for (NcclComm comm : comms) {
    NcclResult state = NcclResult::kInProgress;
    ASSERT_EQ((*nccl)->CommGetAsyncError(comm, state), NcclResult::kSuccess);
    EXPECT_EQ(state, NcclResult::kSuccess);
    EXPECT_EQ((*nccl)->CommDestroy(comm), NcclResult::kSuccess);
  }
}

TEST(NcclLibraryTest, IdsOfGroupsDiffer) {
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  unsetenv("NCCL_RUNTIME_CONNECT");
  absl::StatusOr<std::unique_ptr<NcclApi>> nccl = LoadNccl();
  if (absl::IsNotFound(nccl.status())) GTEST_SKIP() << nccl.status();
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_STREQ(std::getenv("NCCL_RUNTIME_CONNECT"), "0");
  NcclUniqueId ids[2];
  for (NcclUniqueId& id : ids) {
    const NcclResult result = (*nccl)->GetUniqueId(id);
    if (result == NcclResult::kSystemError) GTEST_SKIP() << "no network: " << (*nccl)->LastError();
    ASSERT_EQ(result, NcclResult::kSuccess) << (*nccl)->ErrorString(result) << " " << (*nccl)->LastError();
  }
  EXPECT_FALSE(ids[0] == ids[1]);
  EXPECT_EQ((*nccl)->ErrorString(NcclResult::kSuccess), "no error");
}

}  // namespace
}  // namespace shale
