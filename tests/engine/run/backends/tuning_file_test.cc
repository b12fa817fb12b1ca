#include "engine/run/backends/tuning_file.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/matmul.h"
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

constexpr absl::string_view kAlgorithm =
    "0000000000000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005 0000000000000006 "
    "0000000000000007 0000000000000008";

// A card finds its own table alone, and in it only what is of its version of cuBLASLt.
TEST(TuningFileTest, ACompiledTableIsThatOfItsCardAndVersion) {
  const cuda::MatMulKey key = cuda::MatMulKey::Of({.a = Tensor::Contiguous(DType::kBFloat16, {8, 24}),
                                                   .b = Tensor::Contiguous(DType::kBFloat16, {24, 16}),
                                                   .c_MN = Tensor::Contiguous(DType::kFloat32, {8, 16})},
                                                  /*allow_tf32=*/false);
  const std::string text = absl::StrCat("shale cublaslt algorithms 3\non NVIDIA H200, cublaslt 130100\n",
                                        key.ToString(), " -> ", kAlgorithm, "\n");
  const CompiledFile tables[] = {{"NVIDIA_H100_80GB_HBM3.txt", "no table"}, {"NVIDIA_H200.txt", text}};
  const auto table = CompiledTuningTable("NVIDIA H200", tables);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 1);
  EXPECT_NE(table->Find({"NVIDIA H200", 130100}, key), nullptr);
  EXPECT_EQ(table->Find({"NVIDIA H200", 130200}, key), nullptr);
  EXPECT_EQ(table->size({"NVIDIA H200", 130200}), 0);
  EXPECT_EQ(table->Find({"NVIDIA H200 NVL", 130100}, key), nullptr);
  EXPECT_EQ(CompiledTuningTable("NVIDIA H200 NVL", tables)->size(), 0);
  EXPECT_THAT(std::string(CompiledTuningTable("NVIDIA H100 80GB HBM3", tables).status().message()),
              StartsWith("tools/tuning/NVIDIA_H100_80GB_HBM3.txt is not a tuning table: "));
}

TEST(TuningFileTest, AllCompiledTablesCanBeRead) {
  for (const CompiledFile& one : kCompiledTables) {
    const auto table = cuda::TuningTable::Parse(one.text);
    ASSERT_TRUE(table.ok()) << one.name << ": " << table.status();
    EXPECT_GT(table->size(), 0) << one.name;
  }
}

}  // namespace
}  // namespace shale
