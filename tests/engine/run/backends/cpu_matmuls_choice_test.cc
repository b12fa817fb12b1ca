#include <stdlib.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "engine/run/backends/device_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/measure_matmuls.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Job JobOf(ComputePrecision compute) {
  Job job;
  job.precision.compute = compute;
  return job;
}

std::string CacheOf(DType dtype) { return absl::StrCat("cpu_matmuls-", CpuMatMulsKey(dtype)); }

// Decides a job in fp32 and returns the line. Checks that the line names the choice.
std::string Decide(const std::string& cache_folder, CpuMatMuls* chosen = nullptr) {
  Job job = JobOf(ComputePrecision::kFloat32);
  const absl::StatusOr<std::string> line = CpuDevice().decide_cpu_matmuls(job, cache_folder);
  EXPECT_TRUE(line.ok()) << line.status();
  if (!line.ok()) return "";
  EXPECT_NE(job.runtime.cpu_matmuls, CpuMatMuls::kAuto);
  EXPECT_THAT(*line, StartsWith(absl::StrCat("matmuls by ", ToString(job.runtime.cpu_matmuls), ": ")));
  if (chosen != nullptr) *chosen = job.runtime.cpu_matmuls;
  return *line;
}

TEST(CpuMatMulsChoiceTest, WhatWasMeasuredOnceIsKnownTheNextTime) {
  const TempFolder folder;
  const std::string caches = folder.Path("caches/shale");
  CpuMatMuls first, second;
  EXPECT_THAT(Decide(caches, &first), HasSubstr("as measured now"));
  EXPECT_THAT(Decide(caches, &second), HasSubstr(absl::StrCat("measured before (", caches, "/cpu_matmuls-")));
  EXPECT_EQ(first, second);
}

TEST(CpuMatMulsChoiceTest, TheCacheDecides) {
  const TempFolder folder;
  for (const CpuMatMuls cpu_matmuls : {CpuMatMuls::kOneDnn, CpuMatMuls::kPacked}) {
    folder.Write(CacheOf(DType::kFloat32), absl::StrCat(ToString(cpu_matmuls), "\n"));
    CpuMatMuls chosen;
    EXPECT_THAT(Decide(folder.path(), &chosen), HasSubstr("measured before"));
    EXPECT_EQ(chosen, cpu_matmuls);
  }
}

TEST(CpuMatMulsChoiceTest, ADamagedCacheIsMeasuredAgainAndReplaced) {
  for (const std::string& text : {std::string(), std::string("AUTO\n"), std::string("PACK"), std::string(1000, 'P')}) {
    const TempFolder folder;
    folder.Write(CacheOf(DType::kFloat32), text);
    EXPECT_THAT(Decide(folder.path()), HasSubstr("as measured now")) << text;
    EXPECT_THAT(Decide(folder.path()), HasSubstr("measured before")) << text;
  }
}

// A choice that each run measures anew could change the bits from run to run.
TEST(CpuMatMulsChoiceTest, WhatCannotBeKeptIsNotMeasured) {
  const TempFolder folder;
  const std::string below_a_file = folder.Write("file", "") + "/shale";
  const std::string file_is_a_folder = folder.Path("odd");
  ASSERT_TRUE(MakeFolders(file_is_a_folder + "/" + CacheOf(DType::kFloat32)).ok());
  for (const auto& [caches, why] :
       {std::pair(below_a_file, "file"), {file_is_a_folder, "odd"}, {"", "XDG_CACHE_HOME"}}) {
    CpuMatMuls chosen;
    const std::string line = Decide(caches, &chosen);
    EXPECT_THAT(line, HasSubstr(": the usual choice, because a measurement of the faster one cannot be kept: "));
    EXPECT_THAT(line, HasSubstr(why));
    EXPECT_EQ(chosen, DefaultCpuMatMuls());
  }
}

// Folders of users may lie on a file system that several machines share.
TEST(CpuMatMulsChoiceTest, EachProcessorAndDTypeHasItsOwnFile) {
  const TempFolder folder;
  const std::string own = CacheOf(DType::kFloat32);
  EXPECT_NE(own, CacheOf(DType::kBFloat16));
  folder.Write(CacheOf(DType::kBFloat16), "PACKED\n");
  folder.Write("cpu_matmuls-another-processor", "PACKED\n");
  EXPECT_THAT(Decide(folder.path()), HasSubstr("as measured now"));
  EXPECT_EQ(folder.CountEntries(), 3);
  EXPECT_FALSE(absl::StrContains(own, '/')) << own;
  EXPECT_FALSE(absl::StrContains(own, ' ')) << own;
}

TEST(CpuMatMulsChoiceTest, WhatTheJobNamesIsKept) {
  const TempFolder folder;
  folder.Write(CacheOf(DType::kFloat32), "ONEDNN\n");
  Job job = JobOf(ComputePrecision::kFloat32);
  job.runtime.cpu_matmuls = CpuMatMuls::kPacked;
  EXPECT_EQ(*CpuDevice().decide_cpu_matmuls(job, folder.path()),
            "matmuls by PACKED: as the job, or the run that it resumes, says");
  EXPECT_EQ(job.runtime.cpu_matmuls, CpuMatMuls::kPacked);
}

TEST(CpuMatMulsChoiceTest, AJobWithoutFastOpsOfTheCpuHasNothingToDecide) {
  const TempFolder folder;
  Job reference, cuda;
  reference.runtime.ops = OpsKind::kReference;
  cuda.runtime.device = DeviceType::kCuda;
  for (Job* job : {&reference, &cuda}) {
    EXPECT_EQ(*CpuDevice().decide_cpu_matmuls(*job, folder.path()), "");
    EXPECT_EQ(job->runtime.cpu_matmuls, CpuMatMuls::kAuto);
  }
  EXPECT_EQ(folder.CountEntries(), 0);
}

TEST(CpuMatMulsChoiceTest, TheUsersCacheFollowsTheEnvironment) {
  setenv("HOME", "/home/of", 1);
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(UserCacheFolder(), "/caches/shale");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(UserCacheFolder(), "/home/of/.cache/shale");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(UserCacheFolder(), "");
}

}  // namespace
}  // namespace shale
