#include "engine/runtime/gpu_peaks.h"

namespace shale {
namespace {

struct Peak {
  absl::string_view name;
  double bf16, tf32, fp32;  // TFLOP/s.
};

// Without sparsity: where a data sheet states a rate with it, half of that. NVIDIA's documents:
// - A100, A10, A40, L4, L40, L40S, H100 NVL, H200, H200 NVL and GH200: the data sheet of each.
// - H100 SXM and PCIe: "NVIDIA H100 Tensor Core GPU Architecture", V1.04. The GPU of a GH200 and of an H200 is that of
//   the H100 SXM; their sheets round its rates.
// - B200 and GB200: "NVIDIA Blackwell Datasheet", rates of one GPU of an HGX B200 and of a GB200 NVL72.
// - GeForce and RTX: the appendices of "NVIDIA Ampere GA102 GPU Architecture" V2.1, "NVIDIA Ada GPU Architecture" V2.02
//   and "NVIDIA RTX Blackwell GPU Architecture" V1.1. A GeForce multiplies at half the rate with sums in fp32.
constexpr Peak kPeaks[] = {
    {"NVIDIA A10", 125, 62.5, 31.2},
    {"NVIDIA A100-PCIE-40GB", 312, 156, 19.5},
    {"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
    {"NVIDIA A100-SXM4-40GB", 312, 156, 19.5},
    {"NVIDIA A100-SXM4-80GB", 312, 156, 19.5},
    {"NVIDIA A40", 149.7, 74.8, 37.4},
    {"NVIDIA B200", 2250, 1100, 75},
    {"NVIDIA GB200", 2500, 1250, 80},
    {"NVIDIA GH200 144G HBM3e", 989.4, 494.7, 66.9},
    {"NVIDIA GH200 480GB", 989.4, 494.7, 66.9},
    {"NVIDIA GeForce RTX 3090", 71, 35.6, 35.6},
    {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6},
    {"NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8},
    {"NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9},
    {"NVIDIA H100 NVL", 835.5, 417.5, 60},
    {"NVIDIA H100 PCIe", 756, 378, 51.2},
    {"NVIDIA H200", 989.4, 494.7, 66.9},
    {"NVIDIA H200 NVL", 835.5, 417.5, 60},
    {"NVIDIA L4", 121, 60, 30.3},
    {"NVIDIA L40", 181, 90.5, 90.5},
    {"NVIDIA L40S", 362, 183, 91.6},
    {"NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1},
    {"NVIDIA RTX A6000", 154.8, 77.4, 38.7},
};

}  // namespace

double NominalPeakOf(absl::string_view device_name, DType dtype, bool tf32) {
  for (const Peak& peak : kPeaks) {
    if (peak.name != device_name) continue;
    if (dtype == DType::kBFloat16) return peak.bf16 * 1e12;
    if (dtype == DType::kFloat32) return (tf32 ? peak.tf32 : peak.fp32) * 1e12;
  }
  return 0;
}

}  // namespace shale
