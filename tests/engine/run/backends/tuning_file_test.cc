#include "engine/run/backends/tuning_file.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(TuningFileTest, ATableThatWasPrintedIsReadBack) {
  const TempFolder folder;
  const std::string text = cuda::TuningTable().Print();
  const auto table = ReadTuningTable(folder.Write("table", text));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Print(), text);
}

TEST(TuningFileTest, AMissingFileIsToldFromOneThatIsNoTable) {
  const TempFolder folder;
  const absl::Status missing = ReadTuningTable(folder.Path("missing")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(folder.Path("missing")));
  const std::string path = folder.Write("poem", "no table\n");
  const absl::Status poem = ReadTuningTable(path).status();
  EXPECT_EQ(poem.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(poem.message()), StartsWith(path + " is not a tuning table: "));
}

TEST(TuningFileTest, AFolderHasAFileForEachKindOfGpu) {
  const TempFolder folder;
  const std::string path = folder.Write("table", "");
  EXPECT_EQ(TuningTablePath(path, "NVIDIA H200"), path);
  EXPECT_EQ(TuningTablePath(folder.Path("new"), "NVIDIA H200"), folder.Path("new"));
  EXPECT_EQ(TuningTablePath(folder.Path("new/"), "NVIDIA H200"), folder.Path("new/NVIDIA_H200.txt"));
  EXPECT_EQ(TuningTablePath(folder.path(), "NVIDIA H100 80GB HBM3"), folder.Path("NVIDIA_H100_80GB_HBM3.txt"));
  EXPECT_EQ(TuningTablePath(folder.path(), "../a/b MIG 1g.5gb"), folder.Path("___a_b_MIG_1g_5gb.txt"));
}

}  // namespace
}  // namespace shale
