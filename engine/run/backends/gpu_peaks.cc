#include "engine/run/backends/gpu_peaks.h"

namespace shale {
namespace {

struct Peak {
  absl::string_view name;
  double bf16, tf32, fp32, fp8;  // FLOP/s. That of f16 is that of bf16. 0: it has no such matmuls.
};

// Without sparsity: where a data sheet states a rate with it, half of that. NVIDIA's documents:
// - A100, A10, A40, L4, L40, L40S, H100 NVL, H200, H200 NVL and GH200: the data sheet of each.
// - H100 SXM and PCIe: "NVIDIA H100 Tensor Core GPU Architecture", V1.04. The GPU of a GH200 and of an H200 is that of
//   the H100 SXM; their sheets round its rates.
// - B200 and GB200: "NVIDIA Blackwell Datasheet", rates of one GPU of an HGX B200 and of a GB200 NVL72.
// - GeForce and RTX: the appendices of "NVIDIA Ampere GA102 GPU Architecture" V2.1, "NVIDIA Ada GPU Architecture" V2.02
//   and "NVIDIA RTX Blackwell GPU Architecture" V1.1. A GeForce multiplies at half the rate with sums in fp32, also in
//   fp8: V2.02 corrects the rate of an RTX 4090 to 330.3e12.
constexpr Peak kPeaks[] = {
    {"NVIDIA A10", 125e12, 62.5e12, 31.2e12, 0},
    {"NVIDIA A100-PCIE-40GB", 312e12, 156e12, 19.5e12, 0},
    {"NVIDIA A100 80GB PCIe", 312e12, 156e12, 19.5e12, 0},
    {"NVIDIA A100-SXM4-40GB", 312e12, 156e12, 19.5e12, 0},
    {"NVIDIA A100-SXM4-80GB", 312e12, 156e12, 19.5e12, 0},
    {"NVIDIA A40", 149.7e12, 74.8e12, 37.4e12, 0},
    {"NVIDIA B200", 2250e12, 1100e12, 75e12, 4500e12},
    {"NVIDIA GB200", 2500e12, 1250e12, 80e12, 5000e12},
    {"NVIDIA GH200 144G HBM3e", 989.4e12, 494.7e12, 66.9e12, 1978.9e12},
    {"NVIDIA GH200 480GB", 989.4e12, 494.7e12, 66.9e12, 1978.9e12},
    {"NVIDIA GeForce RTX 3090", 71e12, 35.6e12, 35.6e12, 0},
    {"NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12, 82.6e12, 330.3e12},
    {"NVIDIA GeForce RTX 5090", 209.5e12, 104.8e12, 104.8e12, 419e12},
    {"NVIDIA H100 80GB HBM3", 989.4e12, 494.7e12, 66.9e12, 1978.9e12},
    {"NVIDIA H100 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12},
    {"NVIDIA H100 PCIe", 756e12, 378e12, 51.2e12, 1513e12},
    {"NVIDIA H200", 989.4e12, 494.7e12, 66.9e12, 1978.9e12},
    {"NVIDIA H200 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12},
    {"NVIDIA L4", 121e12, 60e12, 30.3e12, 242.5e12},
    {"NVIDIA L40", 181e12, 90.5e12, 90.5e12, 362e12},
    {"NVIDIA L40S", 362e12, 183e12, 91.6e12, 733e12},
    {"NVIDIA RTX 6000 Ada Generation", 364.2e12, 182.1e12, 91.1e12, 728.5e12},
    {"NVIDIA RTX A6000", 154.8e12, 77.4e12, 38.7e12, 0},
};

}  // namespace

double NominalPeakOf(absl::string_view device_name, DType dtype, bool tf32) {
  for (const Peak& peak : kPeaks) {
    if (peak.name != device_name) continue;
    if (IsFloat8(dtype)) return peak.fp8;
    if (dtype == DType::kBFloat16 || dtype == DType::kFloat16) return peak.bf16;
    if (dtype == DType::kFloat32) return tf32 ? peak.tf32 : peak.fp32;
  }
  return 0;
}

}  // namespace shale
