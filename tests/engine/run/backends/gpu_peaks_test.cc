#include "engine/run/backends/gpu_peaks.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/match.h"

namespace shale {
namespace {

TEST(GpuPeaks, AreThoseOfTheDataSheetsByDtype) {
  EXPECT_EQ(NominalPeakOf("NVIDIA H200", DType::kBFloat16, /*tf32=*/false), 989.4e12);
  EXPECT_EQ(NominalPeakOf("NVIDIA H200", DType::kFloat32, /*tf32=*/true), 494.7e12);
  EXPECT_EQ(NominalPeakOf("NVIDIA H200", DType::kFloat32, /*tf32=*/false), 66.9e12);
  EXPECT_EQ(NominalPeakOf("NVIDIA H200", DType::kFloat8E4M3, /*tf32=*/false), 1978.9e12);
  EXPECT_EQ(NominalPeakOf("NVIDIA H200", DType::kInt32, /*tf32=*/false), 0);
  for (const char* name :
       {"NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA GB200", "NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 NVL", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090", "NVIDIA RTX 6000 Ada Generation"}) {
    const double bf16 = NominalPeakOf(name, DType::kBFloat16, false),
                 fp32 = NominalPeakOf(name, DType::kFloat32, false), tf32 = NominalPeakOf(name, DType::kFloat32, true);
    EXPECT_GT(fp32, 1e13) << name;
    EXPECT_GE(tf32, fp32) << name;
    EXPECT_NEAR(bf16 / tf32, 2, 0.05) << name;  // Of all of them.
    const double fp8 = NominalPeakOf(name, DType::kFloat8E5M2, false);
    EXPECT_NEAR(fp8 / bf16, absl::StrContains(name, "A100") ? 0 : 2, 0.05) << name;
  }
}

// Sheets state these rates with sparsity, which doubles them.
TEST(GpuPeaks, OfFp8AreHalfOfWhatSheetsStateWithSparsity) {
  const std::pair<const char*, double> with_sparsity[] = {{"NVIDIA B200", 9e15},
                                                          {"NVIDIA GB200", 10e15},
                                                          {"NVIDIA H100 NVL", 3341e12},
                                                          {"NVIDIA H100 PCIe", 3026e12},
                                                          {"NVIDIA H200 NVL", 3341e12},
                                                          {"NVIDIA L4", 485e12},
                                                          {"NVIDIA L40", 724e12},
                                                          {"NVIDIA L40S", 1466e12},
                                                          {"NVIDIA GeForce RTX 4090", 660.6e12},
                                                          {"NVIDIA GeForce RTX 5090", 838e12}};
  for (const auto& [name, stated] : with_sparsity) {
    EXPECT_DOUBLE_EQ(NominalPeakOf(name, DType::kFloat8E4M3, false), stated / 2) << name;
  }
}

// Parts of names were once enough, which gave a slice of an H100 the peak of the whole GPU.
TEST(GpuPeaks, NothingIsPromisedOfSlicesOfGpusAndOfUnknownNames) {
  for (const char* name :
       {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "GRID A100-10C", "NVIDIA H100",
        "NVIDIA H100 80GB HBM3e", "H100", "NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA GeForce RTX 5090 D",
        "NVIDIA H20", "nvidia h200", "NVIDIA H200 ", "stand-in for a GPU", ""}) {
    EXPECT_EQ(NominalPeakOf(name, DType::kBFloat16, false), 0) << name;
    EXPECT_EQ(NominalPeakOf(name, DType::kFloat32, true), 0) << name;
  }
}

}  // namespace
}  // namespace shale
